/*
 * Sums of products by named dimensions, "bij,bjk->bik", as one matrix product: names that only one operand has and the result
 * has not are summed away first; then the operands are permuted to a: [batch, left, shared] and b: [batch, shared, right],
 * batch being the names of all three, shared those of both operands, left and right those of one and the result.
 */
#include "ops/op.h"

#include <ctype.h>
#include <string.h>

/* The dimensions of an operand or of the result, by their letters, in order. */
typedef struct names {
    int n;
    char letter[TR_MAX_DIMS];
} names;

typedef struct equation {
    names in[2], out;
} equation;

static int find(const names *in, char letter)
{
    for (int i = 0; i < in->n; i++)
        if (in->letter[i] == letter) return i;
    return -1;
}

/* Letters up to the next other character. */
static tr_status parse_names(const char *text, const char **at, names *to)
{
    for (; isalpha((unsigned char)**at); ++*at) {
        if (to->n == TR_MAX_DIMS)
            return tr__fail(TR_INVALID, "einsum: \"%s\" names more than %d dimensions at once", text, TR_MAX_DIMS);
        if (find(to, **at) >= 0)
            return tr__fail(TR_INVALID, "einsum: \"%s\" names %c twice at once: it takes no diagonals", text, **at);
        to->letter[to->n++] = **at;
    }
    return TR_OK;
}

static tr_status parse(const char *text, equation *e)
{
    const char *at = text;
    TR__TRY(parse_names(text, &at, &e->in[0]));
    bool sound = *at == ',';
    if (sound) {
        at++;
        TR__TRY(parse_names(text, &at, &e->in[1]));
        sound = strncmp(at, "->", 2) == 0;
    }
    if (sound) {
        at += 2;
        TR__TRY(parse_names(text, &at, &e->out));
        sound = *at == '\0';
    }
    if (!sound)
        return tr__fail(TR_INVALID, "einsum: \"%s\" must be letters, comma, letters, arrow, letters: \"ij,jk->ik\"", text);
    for (int i = 0; i < e->out.n; i++)
        if (find(&e->in[0], e->out.letter[i]) < 0 && find(&e->in[1], e->out.letter[i]) < 0)
            return tr__fail(TR_INVALID, "einsum: the result of \"%s\" has %c, which neither operand has", text,
                e->out.letter[i]);
    return TR_OK;
}

static tr_status check_sizes(const char *text, const equation *e, tr_tensor *const *in)
{
    for (int k = 0; k < 2; k++)
        if (in[k]->shape.ndim != e->in[k].n)
            return tr__fail(TR_SHAPE, "einsum: operand %d is %s, which has not the %d dimensions of \"%s\"", k,
                TR__TEXT(in[k]->shape), e->in[k].n, text);
    for (int i = 0; i < e->in[0].n; i++) {
        int other = find(&e->in[1], e->in[0].letter[i]);
        if (other >= 0 && in[0]->shape.dim[i] != in[1]->shape.dim[other])
            return tr__fail(TR_SHAPE, "einsum: sizes of %c differ in \"%s\": %s and %s", e->in[0].letter[i], text,
                TR__TEXT(in[0]->shape), TR__TEXT(in[1]->shape));
    }
    return TR_OK;
}

/* Sums over the names that only operand k has. */
static tr_tensor *without_own(equation *e, int k, tr_tensor *x)
{
    tr_reduce_options sum = {.size = sizeof sum, .x = x};
    names kept = {0};
    for (int i = 0; i < e->in[k].n; i++) {
        char letter = e->in[k].letter[i];
        if (find(&e->in[1 - k], letter) < 0 && find(&e->out, letter) < 0)
            sum.dims.dim[sum.dims.count++] = i;
        else
            kept.letter[kept.n++] = letter;
    }
    e->in[k] = kept;
    return sum.dims.count ? tr_sum_with(&sum) : x;
}

/* One of the three groups of a permuted operand: its names, and the product of their sizes. */
typedef struct group {
    names names;
    int64_t size;
} group;

/* The names of `from` that a and b both have, or not, as asked. */
static group group_of(const names *from, const names *a, bool in_a, const names *b, bool in_b, const names *of,
    const tr_tensor *x)
{
    group g = {.size = 1};
    for (int i = 0; i < from->n; i++) {
        char letter = from->letter[i];
        if ((find(a, letter) >= 0) != in_a || (find(b, letter) >= 0) != in_b) continue;
        g.names.letter[g.names.n++] = letter;
        g.size *= x->shape.dim[find(of, letter)];
    }
    return g;
}

static void append(names *to, const names *more)
{
    for (int i = 0; i < more->n; i++) to->letter[to->n++] = more->letter[i];
}

/* x, whose dimensions are called `is`, permuted to `wanted`. */
static tr_tensor *permuted(tr_tensor *x, const names *is, const names *wanted)
{
    int order[TR_MAX_DIMS];
    for (int i = 0; i < wanted->n; i++) order[i] = find(is, wanted->letter[i]);
    return tr_permute(x, order, wanted->n);
}

/* The operand as [batch, rows, columns]. */
static tr_tensor *as_matrices(tr_tensor *x, const names *is, const group *batch, const group *rows, const group *columns)
{
    names wanted = {0};
    append(&wanted, &batch->names);
    append(&wanted, &rows->names);
    append(&wanted, &columns->names);
    return tr_reshape(permuted(x, is, &wanted), TR_SHAPE(batch->size, rows->size, columns->size));
}

static tr_tensor *contract(const equation *e, tr_tensor *a, tr_tensor *b)
{
    const names *left_names = &e->in[0], *right_names = &e->in[1], *out = &e->out;
    group batch = group_of(out, left_names, true, right_names, true, left_names, a);
    group left = group_of(out, left_names, true, right_names, false, left_names, a);
    group right = group_of(out, left_names, false, right_names, true, right_names, b);
    group shared = group_of(left_names, right_names, true, out, false, left_names, a);
    tr_tensor *product = tr_matmul(as_matrices(a, left_names, &batch, &left, &shared),
        as_matrices(b, right_names, &batch, &shared, &right));
    names is = {0};
    append(&is, &batch.names);
    append(&is, &left.names);
    append(&is, &right.names);
    tr_shape shape = {.ndim = is.n};
    for (int i = 0; i < is.n; i++) {
        int at = find(left_names, is.letter[i]);
        shape.dim[i] = at >= 0 ? a->shape.dim[at] : b->shape.dim[find(right_names, is.letter[i])];
    }
    return permuted(tr_reshape(product, shape), &is, out);
}

tr_tensor *tr_einsum(const char *text, tr_tensor *a, tr_tensor *b)
{
    equation e = {0};
    if (!text) return tr__tensor_fail(TR_INVALID, "einsum: the equation is NULL");
    TR__REQUIRE("einsum", "input 0", a);
    TR__REQUIRE("einsum", "input 1", b);
    if (parse(text, &e) != TR_OK || check_sizes(text, &e, (tr_tensor *[]){a, b}) != TR_OK) return tr__tensor_failed();
    a = without_own(&e, 0, a);
    b = without_own(&e, 1, b);
    if (tr__bad(a) || tr__bad(b)) return tr__tensor_pass(tr__bad(a) ? a : b);
    return contract(&e, a, b);
}
