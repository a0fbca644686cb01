#!/bin/sh
# scripts/check-names must find names of two meanings, whatever they are names of, and pass names of one; and find the words
# that docs/conventions.md avoids in the folders that are cleaned of them.
. "$SOURCE/tests/process/common"
shown=output
mkdir -p "$work/scripts" "$work/src/base" "$work/src/ops" "$work/cli" "$work/docs"
cp "$SOURCE/docs/conventions.md" "$work/docs/"
cp "$SOURCE/scripts/check-names" "$work/scripts/"
check() { "$work/scripts/check-names" >"$work/output" 2>&1; }

cat >"$work/src/base/one.h" <<'END'
/* struct tr__comment { in words } */
#ifdef __cplusplus
extern "C" {
#endif
typedef struct tr__list { struct tr__entry { int value; } first; } tr__list;
typedef struct tr__opaque tr__opaque;
typedef struct {
    int value;
} tr__nameless;
typedef int (*tr__callback)(const tr__list *list);
typedef enum tr__color { TR__RED } tr__color;
struct tr__late;
tr__opaque *tr__make(const struct tr__late *late,
    tr__callback f) __attribute__((nonnull));
static inline int tr__of(tr__list *list) { return list ? 1 : 2; }
extern const char *const tr__texts[3], tr__key[];
#define tr__make(...) tr__make(__VA_ARGS__, 0)
#ifdef __cplusplus
}
#endif
END
cat >"$work/src/base/one.c" <<'END'
struct tr__opaque { char brace; };
static void tr__own(void) { const char *text = "struct tr__text {"; char c = '{'; }
tr__opaque *(tr__make)(const struct tr__late *late, tr__callback f)
{
#ifdef A
    if (f) {
#else
    if (!f) {
#endif
        tr__own();
    }
}
tr__opaque *tr__make_stub(void)
{
    return tr__make(0, 0);
}
const char *const tr__texts[3] = {"tr__texts"};
END
# What a source of the same name's alternative defines, and what is static there.
printf 'static int tr__own(void) { return 0; }\nconst char *const tr__texts[3] = {""};\n' >"$work/src/base/one_stub.c"
check || fail "names of one meaning were refused"

refuses() { # NAME KIND FILE TEXT
    printf '%b' "$4" >"$work/$3"
    ! check || fail "$4 in $3 was let be another $1"
    grep -q "^$1 has 2 meanings:" "$work/output" && grep -q "^    $3:[0-9]*: $2$" "$work/output" || fail "$1 of $3 is not named"
    rm "$work/$3"
}
refuses tr__list type src/ops/two.h 'typedef struct tr__list {\n    int number;\n} tr__list;\n'
refuses tr__entry type src/ops/two.c 'struct tr__entry { int number; };\n'
refuses tr__opaque type cli/two.c 'struct tr__opaque { int number; };\n'
refuses tr__nameless type src/ops/two.h 'typedef struct {\n    int x;\n} tr__nameless;\n'
refuses tr__callback type src/ops/two.h 'typedef void (*tr__callback)(void);\n'
refuses tr__callback type src/ops/two.h 'typedef int tr__callback;\n'
refuses tr__color type src/ops/two.h 'enum tr__color { BLUE };\n'
refuses tr__list function src/ops/two.h 'int tr__list(int n,\n    int m);\n'
refuses tr__make_stub type src/ops/two.h 'struct tr__make_stub {\n    int x;\n};\n'
refuses tr__of function src/ops/two.h 'static inline int tr__of(int x)\n{\n    return x;\n}\n'
refuses tr__make function src/ops/two.c 'void tr__make(int);\n'
refuses tr__key type src/ops/two.h 'typedef int tr__key;\n'

# Words.
avoids() { # LINE
    echo "$1" >"$work/cli/words.c"
    ! check || fail "'$1' was let stand in cli/"
    grep -q '^cli/words.c:1:' "$work/output" || fail "the place of '$1' is not named"
    rm "$work/cli/words.c"
}
avoids '/* Hires a worker. */'
avoids 'static int crew_size(void);'
avoids '    "a batch of pictures"'
avoids '/* NaN is none */'
avoids '/* A dispute between teams. */'
avoids 'tr_tensor *tr__carrier(void);'
echo '/* A wildcard: there is none. */' >"$work/cli/words.c"
mkdir -p "$work/plugins/cuda"
echo '/* Not on this card. */' >"$work/plugins/cuda/words.cu"
check || fail "ordinary words were refused"
echo '/* A crew. */' >"$work/plugins/cuda/words.cu"
! check || fail "'crew' was let stand in plugins/"
rm "$work/plugins/cuda/words.cu"
rm "$work/docs/conventions.md"
! check || fail "a table of words that is missing was let pass"
