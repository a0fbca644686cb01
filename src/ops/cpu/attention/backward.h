/*
 * The gradients of attention (formulas in ops/attention.c), one (batch, head) at a time. For a block of queries and a block
 * of keys, p and ds are made from two products, and three more add them to dq, dk and dv. Included after
 * forward.h.
 */
enum {
#ifdef TILE_AMX
    GRAD_QUERIES = 2 * TILE_ROWS,
#else
    GRAD_QUERIES = 11 * TILE_ROWS, /* of a block */
#endif
    GRAD_KEYS = 256,               /* of a block: p and ds are 66, or 64, rows of 256 */
    GRAD_ROW = GRAD_KEYS + 16,     /* so that rows do not all fall on the same cache sets */
    /* Their columns on the left, for heads_transposed(): from a column, or step, to the next; and all. */
#ifdef TILE_AMX
    COLUMN = GRAD_QUERIES / 2 + 16, COLUMN_STEP = 1, TRANSPOSED = GRAD_KEYS * COLUMN,
#else
    COLUMN = 1, COLUMN_STEP = GRAD_ROW, TRANSPOSED = GRAD_QUERIES / 2 * GRAD_ROW,
#endif
};

typedef struct backward {
    const tr__attention *a;
    int64_t number, next;   /* of the (batch, head) */
    float *p, *ds;          /* [GRAD_QUERIES][GRAD_ROW] */
    float *transposed;      /* TRANSPOSED, for heads_transposed() */
    float scale;            /* of products */
    float *lse, *delta;     /* [queries]; lse times log2(e), */
    float *base;            /* [queries] and relative to this product: 0, but for lse beyond LARGE */
    float *keys, *values;   /* as columns */
    operand q, g;           /* on the left, */
    operand q_right, g_right, k; /* and on the right */
    float *dq, *dk, *dv;    /* [queries or keys][wide] */
} backward;

/* An lse beyond LARGE has lost the digits that weights need: the query's largest product and the sum of its weights are computed
 * again, from the products that differentiate() gets. An infinite lse, of a query that saw no key, or whose scores are beyond what
 * f32 holds, leaves no weights. */
static void weigh_again(backward *b, int64_t i)
{
    const tr__attention *a = b->a;
    float max = -INFINITY, sum = 0;
    for (int64_t from = 0; isfinite(b->lse[i]) && from < tr__keys_seen(a, i); from += GRAD_KEYS) {
        int64_t n = heads_visible(a, i, from, GRAD_KEYS);
        heads_score(a, &b->q, b->keys, i, 1, from, GRAD_KEYS, b->p, GRAD_ROW);
        heads_mask(a, b->number, i, from, n, b->p);
        float old = max;
        max = row_max(b->p, n, old);
        if (max == -INFINITY) continue;
        subtract(b->p, n, max);
        sum = sum * exp2f((old - max) * b->scale) + row_exp2(b->p, n, b->scale, 0);
    }
    b->base[i] = sum == 0 ? INFINITY : max;
    b->lse[i] = sum == 0 ? 0 : log2f(sum);
}

/* p and ds of one query from its scores and g v^T. */
static void differentiate(backward *b, int64_t i, int64_t row, int64_t from)
{
    float *p = b->p + row * GRAD_ROW, *ds = b->ds + row * GRAD_ROW, lse = b->lse[i + row], delta = b->delta[i + row];
    int64_t n = heads_visible(b->a, i + row, from, GRAD_KEYS);
    heads_mask(b->a, b->number, i + row, from, n, p);
    if (b->base[i + row] != 0) subtract(p, n, b->base[i + row]);
    for (int64_t j = 0; j < n; j += WIDTH) {
        vec y = vec_exp2(vec_load(p + j) * b->scale - lse), z = y * (vec_load(ds + j) - delta);
        heads_put_weights(p, j, lanes_keep(y, n - j));
        heads_put_weights(ds, j, lanes_keep(z, n - j));
    }
    clear_after(p, n);
    clear_after(ds, n);
}

/* sums[from+j] += over r of weights[r][j] * right_(i+r): the queries r of the block that see the keys of j's tile. */
static void add_columns(const backward *b, const float *weights, const operand *right, int64_t i, int64_t n, int64_t from,
    float *sums)
{
    const tr__attention *a = b->a;
    int64_t last = heads_visible(a, i + n - 1, from, GRAD_KEYS), wide = heads_wide(a);
    weights = heads_transposed(weights, GRAD_ROW, n, last, b->transposed, COLUMN);
    tile t = {.a_row = COLUMN, .a_k = COLUMN_STEP, .b_k = right->row, .c_row = wide, .add = true};
    for (int64_t j = 0; j < last; j += TILE_ROWS) {
        int64_t first = a->causal ? from + j - (a->keys - a->queries) - i : 0;
        if (first < 0) first = 0;
        first -= first % HEADS_STEP; /* for whom the weights of these keys are 0 */
        t.k = heads_steps(n - first);
        t.a = weights + first / HEADS_STEP * COLUMN_STEP + j * COLUMN;
        t.b = right->data + (i + first) / HEADS_STEP * right->row;
        t.c = sums + (from + j) * wide;
        heads_tiles(&t, tile_rows_left(last - j), wide / WIDTH);
    }
}

static void add_gradients(backward *b, int64_t i, int64_t n, int64_t from)
{
    const tr__attention *a = b->a;
    heads_score(a, &b->q, b->keys, i, n, from, GRAD_KEYS, b->p, GRAD_ROW);
    heads_score(a, &b->g, b->values, i, n, from, GRAD_KEYS, b->ds, GRAD_ROW);
    for (int64_t row = 0; row < n; row++) differentiate(b, i, row, from);
    heads_add_rows(a, b->ds, GRAD_ROW, &b->k, i, n, from, GRAD_KEYS, b->dq + i * heads_wide(a));
    add_columns(b, b->p, &b->g_right, i, n, from, b->dv);
    add_columns(b, b->ds, &b->q_right, i, n, from, b->dk);
}

/* Prefetches this block's part of the next head, and of where this head's gradients are written. */
static void prefetch(const backward *b, int64_t i, int64_t n)
{
    const tr__attention *a = b->a;
    const struct { const tr__heads *x; int64_t rows, number; } what[] = {
        {&a->q, a->queries, b->next}, {&a->k, a->keys, b->next}, {&a->v, a->keys, b->next},
        {&a->o, a->queries, b->next}, {&a->g, a->queries, b->next},
        {&a->dq, a->queries, b->number}, {&a->dk, a->keys, b->number}, {&a->dv, a->keys, b->number},
    };
    for (size_t w = 0; w < sizeof what / sizeof *what; w++)
        heads_prefetch(a, what[w].x, tr__head_at(a, what[w].x, what[w].number), what[w].rows, i, n);
}

static void read_inputs(backward *b, float **scratch)
{
    const tr__attention *a = b->a;
    int64_t wide = heads_wide(a), k_at = tr__head_at(a, &a->k, b->number), v_at = tr__head_at(a, &a->v, b->number);
    int64_t q_at = tr__head_at(a, &a->q, b->number), g_at = tr__head_at(a, &a->g, b->number);
    b->keys = take(scratch, heads_columns_size(a, a->keys));
    b->values = take(scratch, heads_columns_size(a, a->keys));
    heads_columns(a, &a->k, k_at, a->keys, a->scale < 0, b->keys);
    heads_columns(a, &a->v, v_at, a->keys, false, b->values);
    b->k = heads_right(a, &a->k, k_at, a->keys, NULL, take(scratch, a->keys * wide));
    b->q = heads_left(a, &a->q, q_at, a->queries, take(scratch, a->queries * wide));
    b->g = heads_left(a, &a->g, g_at, a->queries, take(scratch, a->queries * wide));
    b->q_right = heads_right(a, &a->q, q_at, a->queries, &b->q, take(scratch, a->queries * wide));
    b->g_right = heads_right(a, &a->g, g_at, a->queries, &b->g, take(scratch, a->queries * wide));
    b->lse = take(scratch, a->queries);
    b->delta = take(scratch, a->queries);
    b->base = take(scratch, a->queries);
    const float *lse = (const float *)a->lse.data + tr__head_at(a, &a->lse, b->number);
    for (int64_t i = 0; i < a->queries; i++) {
        b->lse[i] = lse[i * a->lse.stride[2]] * (float)M_LOG2E;
        b->delta[i] = heads_dot(a, &a->g, g_at, &a->o, tr__head_at(a, &a->o, b->number), i);
        b->base[i] = 0;
    }
}

static void write_outputs(const backward *b)
{
    const tr__attention *a = b->a;
    int64_t wide = heads_wide(a), dq_at = tr__head_at(a, &a->dq, b->number), dk_at = tr__head_at(a, &a->dk, b->number);
    int64_t dv_at = tr__head_at(a, &a->dv, b->number);
    for (int64_t i = 0; i < a->queries; i++) heads_store(a, &a->dq, dq_at, i, b->dq + i * wide, (float)a->scale);
    for (int64_t j = 0; j < a->keys; j++) {
        heads_store(a, &a->dk, dk_at, j, b->dk + j * wide, (float)a->scale);
        heads_store(a, &a->dv, dv_at, j, b->dv + j * wide, 1);
    }
}

static size_t backward_scratch(const tr__attention *a)
{
    int64_t rows = 5 * a->queries + 3 * a->keys, wide = heads_wide(a);
    return (size_t)(rows * wide + 2 * GRAD_QUERIES * GRAD_ROW + TRANSPOSED + 2 * heads_columns_size(a, a->keys) + 3 * a->queries) +
           16 * TR__CACHE_LINE;
}

static void backward_head(const tr__attention *a, int64_t number, int64_t next, float *scratch)
{
    int64_t wide = heads_wide(a);
    backward b = {.a = a, .number = number, .next = next, .scale = heads_scale(a), .dq = scratch};
    take(&scratch, a->queries * wide);
    b.dk = take(&scratch, a->keys * wide);
    b.dv = take(&scratch, a->keys * wide);
    memset(b.dq, 0, sizeof *b.dq * (size_t)(scratch - b.dq));
    b.p = take(&scratch, GRAD_QUERIES * GRAD_ROW);
    b.ds = take(&scratch, GRAD_QUERIES * GRAD_ROW);
    b.transposed = take(&scratch, TRANSPOSED);
    read_inputs(&b, &scratch);
    tile_begin();
    for (int64_t i = 0; i < a->queries; i++)
        if (fabsf(b.lse[i]) > LARGE) weigh_again(&b, i);
    for (int64_t from = 0; from < a->keys; from += GRAD_KEYS) {
        for (int64_t i = 0; i < a->queries; i += GRAD_QUERIES) {
            int64_t n = a->queries - i < GRAD_QUERIES ? a->queries - i : GRAD_QUERIES;
            if (from == 0) prefetch(&b, i, n);
            if (heads_visible(a, i + n - 1, from, GRAD_KEYS) > 0) add_gradients(&b, i, n, from);
        }
    }
    tile_end();
    write_outputs(&b);
}
