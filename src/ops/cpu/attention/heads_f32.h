/*
 * One (batch, head) of q, k, v, … as the f32 that the microkernel multiplies. Included by heads.h; its counterpart for bf16 is
 * heads_vnni.h.
 */

/* x: [rows, dim] as rows of whole vectors, on the left or the right of a product: where it lies if it can be read so, else
 * copied to scratch, which has rows * heads_wide(a) floats. */
static operand heads_left(const tr__attention *a, const tr__heads *x, int64_t at, int64_t rows, float *scratch)
{
    int64_t wide = heads_wide(a);
    if (a->dtype == TR_F32 && x->stride[3] == 1 && a->dim == wide)
        return (operand){(const float *)x->data + at, x->stride[2]};
    for (int64_t i = 0; i < rows; i++)
        for (int64_t d = 0; d < wide; d += WIDTH) vec_store(scratch + i * wide + d, heads_load(a, x, at + i * x->stride[2], d));
    return (operand){scratch, wide};
}

/* The same for the right; left: what heads_left made of it. */
static operand heads_right(const tr__attention *a, const tr__heads *x, int64_t at, int64_t rows, const operand *left,
    float *scratch)
{
    return left ? *left : heads_left(a, x, at, rows, scratch);
}

/* x as columns, times the sign: out is [chunks of TILE_COLUMNS rows][dim][TILE_COLUMNS], zeros after the last row. */
static void heads_columns(const tr__attention *a, const tr__heads *x, int64_t at, int64_t rows, bool negative, float *out)
{
    int64_t padded = (rows + TILE_COLUMNS - 1) / TILE_COLUMNS * TILE_COLUMNS;
    float sign = negative ? -1 : 1;
    for (int64_t row = 0; row < padded; row += WIDTH) {
        float *to = out + row / TILE_COLUMNS * TILE_COLUMNS * a->dim + row % TILE_COLUMNS;
        for (int64_t d = 0; d < a->dim; d += WIDTH) {
            vec square[WIDTH];
            for (int64_t i = 0; i < WIDTH; i++)
                square[i] = row + i < rows ? heads_load(a, x, at + (row + i) * x->stride[2], d) : (vec){0};
            lanes_transpose(square);
            for (int64_t i = 0; i < WIDTH && d + i < a->dim; i++) vec_store(to + (d + i) * TILE_COLUMNS, square[i] * sign);
        }
    }
}

/* Stores a vector of weights from column j of a row on. They overwrite the scores, which have been read. */
static inline void heads_put_weights(float *row, int64_t j, vec weights)
{
    vec_store(row + j, weights);
}

/* n rows of weights, row apart, as columns on the left. f32 is read where it lies. */
static const float *heads_transposed(const float *weights, int64_t row, int64_t n, int64_t columns, float *out, int64_t column)
{
    (void)row;
    (void)n;
    (void)columns;
    (void)out;
    (void)column;
    return weights;
}
