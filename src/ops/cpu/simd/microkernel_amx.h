/*
 * The microkernel on the tile registers of AMX, which hold 16 rows of 64 bytes: 16 steps (VNNI pairs) of rows of a or of columns
 * of b, or 16 x 16 sums. c is 2 x 2 of them, so that each tile that is loaded is multiplied twice: a product takes 16 cycles, a
 * load from the first-level cache 8, and four products are begun before the first is done (52 cycles).
 *
 * a's steps are contiguous: a_k is 1. Where c has fewer rows, the registers get as many; where k is no multiple of 16, the last
 * steps are copied and zeros put behind them. Included by microkernel.h.
 */
enum { AMX_STEPS = 16, AMX_ROWS = 16 };

/* What LDTILECFG reads. */
typedef struct amx_shapes {
    uint8_t palette, start_row, zeros[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} amx_shapes;

/* Registers 0 to 3 are the tiles of c; 4 and 5 those of a, one below the other; 6 and 7 those of b, side by side. */
static inline void amx_configure(int64_t rows)
{
    uint8_t upper = (uint8_t)(rows < AMX_ROWS ? rows : AMX_ROWS), lower = (uint8_t)(rows > AMX_ROWS ? rows - AMX_ROWS : AMX_ROWS);
    _Alignas(TR__CACHE_LINE) const amx_shapes shapes = {.palette = 1, .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
        .rows = {upper, upper, lower, lower, upper, lower, AMX_STEPS, AMX_STEPS}};
    __asm__ volatile("ldtilecfg %0" : : "m"(shapes));
}

/* On each thread around calls of tile_run(). Registers in use would make switching threads and sleeping dearer. */
static inline void tile_begin(void)
{
    amx_configure(TILE_ROWS);
}

static inline void tile_end(void)
{
    __asm__ volatile("tilerelease");
}

#define AMX_ZERO(tile) __asm__ volatile("tilezero %%tmm" #tile : :)
#define AMX_LOAD(tile, from, row_bytes) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile : : "r"(from), "r"(row_bytes) : "memory")
#define AMX_STORE(tile, to, row_bytes) \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" : : "r"(to), "r"(row_bytes) : "memory")
#define AMX_MULTIPLY(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c : :)
#define AMX_INLINE static inline __attribute__((always_inline))

/* Adds the products of k steps, a multiple of 16, to the registers of c. low: there are rows below; wide: columns beside. */
AMX_INLINE void amx_multiply(const float *a, int64_t a_row, const float *b, int64_t b_k, int64_t k, const bool low,
    const bool wide)
{
    const int64_t a_bytes = a_row * (int64_t)sizeof *a, b_bytes = b_k * (int64_t)sizeof *b;
    for (; k > 0; k -= AMX_STEPS, a += AMX_STEPS, b += AMX_STEPS * b_k) {
        AMX_LOAD(6, b, b_bytes);
        AMX_LOAD(4, a, a_bytes);
        AMX_MULTIPLY(0, 4, 6);
        if (wide) {
            AMX_LOAD(7, b + WIDTH, b_bytes);
            AMX_MULTIPLY(1, 4, 7);
        }
        if (low) {
            AMX_LOAD(5, a + AMX_ROWS * a_row, a_bytes);
            AMX_MULTIPLY(2, 5, 6);
        }
        if (low && wide) AMX_MULTIPLY(3, 5, 7);
    }
}

/* The last steps, fewer than 16. */
AMX_INLINE void amx_multiply_rest(const float *a, int64_t a_row, const float *b, int64_t b_k, int64_t k, int64_t rows,
    const bool low, const bool wide)
{
    _Alignas(TR__CACHE_LINE) float left[TILE_ROWS * AMX_STEPS], right[AMX_STEPS * TILE_COLUMNS] = {0};
    for (int64_t i = 0; i < rows; i++) vec_store(left + i * AMX_STEPS, vec_load_part(a + i * a_row, k));
    for (int64_t i = 0; i < k; i++)
        for (int j = 0; j <= wide; j++) vec_store(right + i * TILE_COLUMNS + j * WIDTH, vec_load(b + i * b_k + j * WIDTH));
    amx_multiply(left, AMX_STEPS, right, TILE_COLUMNS, AMX_STEPS, low, wide);
}

/* From the sums, [rows][TILE_COLUMNS], to c, or to bf16. */
static void amx_write(const tile *t, const float *sums, int64_t rows, int64_t vectors)
{
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < vectors * WIDTH; j += WIDTH) {
            vec x = vec_load(sums + i * TILE_COLUMNS + j);
            if (t->bias) x += vec_load(t->bias + j);
            if (t->residual) x += vec_load(t->residual + i * t->residual_row + j);
            if (t->c_bf16)
                _mm256_storeu_si256((__m256i *)(t->c_bf16 + i * t->c_bf16_row + j), (__m256i)_mm512_cvtneps_pbh((__m512)x));
            else if (t->stream) vec_stream(t->c + i * t->c_row + j, x);
            else vec_store(t->c + i * t->c_row + j, x);
        }
    }
}

AMX_INLINE void tile_run_of(const tile *t, int64_t rows, const bool low, const bool wide)
{
    _Alignas(TR__CACHE_LINE) float sums[TILE_ROWS * TILE_COLUMNS];
    const bool in_place = !t->bias && !t->residual && !t->c_bf16 && !t->stream;
    int64_t rest = t->k % AMX_STEPS, whole = t->k - rest, row_bytes = t->c_row * (int64_t)sizeof *t->c;
    float *c = t->c, *c_below = c + AMX_ROWS * t->c_row;
    if (rows % AMX_ROWS) amx_configure(rows);

    if (t->add) {
        AMX_LOAD(0, c, row_bytes);
        if (wide) AMX_LOAD(1, c + WIDTH, row_bytes);
        if (low) AMX_LOAD(2, c_below, row_bytes);
        if (low && wide) AMX_LOAD(3, c_below + WIDTH, row_bytes);
    } else {
        AMX_ZERO(0);
        if (wide) AMX_ZERO(1);
        if (low) AMX_ZERO(2);
        if (low && wide) AMX_ZERO(3);
    }
    amx_multiply(t->a, t->a_row, t->b, t->b_k, whole, low, wide);
    if (rest) amx_multiply_rest(t->a + whole, t->a_row, t->b + whole * t->b_k, t->b_k, rest, rows, low, wide);

    if (!in_place) {
        c = sums;
        c_below = sums + AMX_ROWS * TILE_COLUMNS;
        row_bytes = TILE_COLUMNS * (int64_t)sizeof *sums;
    }
    AMX_STORE(0, c, row_bytes);
    if (wide) AMX_STORE(1, c + WIDTH, row_bytes);
    if (low) AMX_STORE(2, c_below, row_bytes);
    if (low && wide) AMX_STORE(3, c_below + WIDTH, row_bytes);
    if (rows % AMX_ROWS) amx_configure(TILE_ROWS);
    if (!in_place) amx_write(t, sums, rows, wide ? 2 : 1);
}

/* The same interface as on other machines. */
static void tile_run(const tile *t, int64_t rows, int64_t vectors)
{
    bool low = rows > AMX_ROWS, wide = vectors > 1;
    if (low && wide) tile_run_of(t, rows, true, true);
    else if (low) tile_run_of(t, rows, true, false);
    else if (wide) tile_run_of(t, rows, false, true);
    else tile_run_of(t, rows, false, false);
}
