#!/bin/sh
# Every piece of C in the pages compiles: those that are not programs (the tutorial, the cookbook and README are, and run) stand in
# a function here, behind declarations of the names that they take for granted.
. "$SOURCE/tests/process/common"
cd "$work"
command -v gcc >/dev/null || { echo "no gcc, whose functions may stand in functions"; exit 77; }

cat >names.h <<'END'
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trireme/kernels.h>
#include <trireme/tools.h>
#include <trireme/trireme.h>
extern tr_module *net, *body, *first, *second, *block[];
extern tr_optimizer *opt;
extern tr_group *world;
extern tr_rpc *rpc;
extern tr_tensor *x, *y, *loss, *images, *ids, *mask, *labels, *src, *tgt, *src_keys, *weights;
extern tr_tensor_list *state, *norms;
extern tr_loader *loader, *test_loader;
extern tr_dataset *set;
extern tr_text *text;
extern int rank, world_size, blocks;
extern int64_t steps, count;
extern size_t bytes;
extern double lr;
extern void *user;
END

# names PAGE FIRST-WORDS: what a piece takes for granted beyond names.h.
names() {
    case $1:$2 in
    data:"/* Two texts"*)
        echo "typedef struct corpus { tr_tokenizer *tokenizer; const char *const *first, *const *second; const int *same; } corpus;" ;;
    data:"static tr_dataset *read_csv"*) echo "enum { MOST = 1000 };" ;;
    data:"static tr_tensor *squares"*) echo "extern tr_score score;" ;;
    distributed-autograd:*) echo "extern tr_dist_optimizer *optimizer;" ;;
    gpu:*) echo "extern struct job { tr_module *net; tr_optimizer *opt; } job; extern uint64_t seed, i; extern tr_batch b;" ;;
    interchange:DLManaged*) echo "typedef struct DLManagedTensorVersioned DLManagedTensorVersioned; extern DLManagedTensorVersioned *theirs;" ;;
    launching:*) echo "extern int settings;" ;;
    memory:*) echo "tr_tensor *f(tr_tensor *const *inputs, int n, void *user);" ;;
    models:*) echo "extern tr_tensor *classes;" ;;
    parallel:"tr_module *stages"*) echo "tr_tensor *mean_loss(tr_tensor *y, tr_tensor *target, void *user);" ;;
    rpc:"static double add_up"*)
        echo "enum { WORKERS = 4 };"
        echo "typedef struct meeting { pthread_mutex_t lock; double sum; int count; tr_rpc_reply *replies[WORKERS]; } meeting;" ;;
    esac
}

pieces=0
for page in "$SOURCE"/docs/*.md "$SOURCE"/docs/programs/*.md; do
    name=$(basename "$page" .md)
    case $name in tutorial | cookbook | abi) continue ;; esac # abi shows a struct of the header's
    rm -f piece-*
    awk '/^```c$/ { on = 1; file = sprintf("piece-%d", NR + 1); next } /^```/ { on = 0 } on { print > file }' "$page"
    for piece in piece-*; do
        [ -e "$piece" ] || continue
        line=${piece#piece-}
        {
            cat names.h
            names "$name" "$(head -n 1 "$piece")"
            printf '#define static\nvoid piece(void);\nvoid piece(void)\n{\n#line %s "docs/%s.md"\n' "$line" "$name"
            sed 's/…//' "$piece"
            echo '}'
        } >piece.c
        gcc -std=gnu11 -fsyntax-only -Wall -Werror -Wno-unused -Wno-main -Wno-uninitialized -Wno-maybe-uninitialized \
            -I"$SOURCE/include" piece.c 2>err || fail "docs/$name.md, line $line: $(cat err)"
        pieces=$((pieces + 1))
    done
done
[ $pieces -gt 30 ] || fail "only $pieces pieces of C were found"
