#include "amx_double.h"

#include "base/isa.h"

#include <stdatomic.h>
#include <string.h>

bool __real_tr__amx_permitted(void);
bool __wrap_tr__amx_permitted(void);
bool amx_everywhere;

bool amx_leaves_out(tr_dtype dtype)
{
    return tr__isa_allowed() == TR__ISA_AMX && dtype != TR_BF16;
}

#if defined(__x86_64__) && defined(TR__KNOWS_AMX)

#include <immintrin.h>
#include <signal.h>
#include <ucontext.h>

/* ---- Tile registers --------------------------------------------------------------------------------------------------- */

enum { TILES = 8, ROWS = 16, ROW_BYTES = 64, CONFIG_BYTES = 64 };

typedef struct tile_state {
    uint8_t palette, start_row, zeros[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
    _Alignas(64) uint8_t row[TILES][ROWS][ROW_BYTES];
} tile_state;

/* In the program's own storage for threads, which needs no allocation: handlers may use it. */
static _Thread_local tile_state tiles;
static atomic_int_fast64_t all_done; /* instructions, of all threads */

static bool has_tile(int t)
{
    return tiles.palette == 1 && tiles.rows[t] > 0;
}

/* What Intel's manual refuses is refused. */
static bool load_config(const uint8_t *from)
{
    tile_state new = {0};
    memcpy(&new, from, CONFIG_BYTES);
    if (new.palette > 1 || new.start_row > 0) return false;
    for (int i = 0; i < 14; i++)
        if (new.zeros[i]) return false;
    for (int t = 0; t < 16; t++) {
        if (new.row_bytes[t] > ROW_BYTES || new.rows[t] > ROWS || !new.row_bytes[t] != !new.rows[t]) return false;
        if (t >= TILES && new.rows[t]) return false;
    }
    tiles = new;
    return true;
}

static bool load(int t, const uint8_t *from, int64_t stride)
{
    if (!has_tile(t)) return false;
    memset(tiles.row[t], 0, sizeof tiles.row[t]);
    for (int r = 0; r < tiles.rows[t]; r++) memcpy(tiles.row[t][r], from + r * stride, tiles.row_bytes[t]);
    return true;
}

static bool store(int t, uint8_t *to, int64_t stride)
{
    if (!has_tile(t)) return false;
    for (int r = 0; r < tiles.rows[t]; r++) memcpy(to + r * stride, tiles.row[t][r], tiles.row_bytes[t]);
    return true;
}

/* c += a b: in each row the first numbers of the pairs are added up in their order, then the second ones, each by a fused
 * multiply-add; then both sums, and then c. The caller has set the mode of rounding. */
__attribute__((noinline, target("avx512f"))) static void multiply_rows(int c, int a, int b)
{
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    for (int r = 0; r < tiles.rows[c]; r++) {
        __m512 firsts = _mm512_setzero_ps(), seconds = _mm512_setzero_ps();
        for (int k = 0; k < tiles.row_bytes[a] / 4; k++) {
            int32_t pair;
            memcpy(&pair, tiles.row[a][r] + 4 * k, sizeof pair);
            __m512i left = _mm512_set1_epi32(pair), right = _mm512_load_si512(tiles.row[b][k]);
            firsts = _mm512_fmadd_ps((__m512)_mm512_slli_epi32(left, 16), (__m512)_mm512_slli_epi32(right, 16), firsts);
            seconds = _mm512_fmadd_ps((__m512)_mm512_and_si512(left, upper), (__m512)_mm512_and_si512(right, upper), seconds);
        }
        float *sums = (float *)(void *)tiles.row[c][r];
        _mm512_store_ps(sums, _mm512_add_ps(_mm512_load_ps(sums), _mm512_add_ps(firsts, seconds)));
    }
}

static bool multiply(int c, int a, int b)
{
    enum { MASKED = 0x1f80, FLUSH_TO_ZERO = 0x8000, DENORMALS_ARE_ZEROS = 0x40 }; /* and to the nearest, or even */
    if (!has_tile(c) || !has_tile(a) || !has_tile(b) || c == a || c == b || a == b) return false;
    if (tiles.rows[a] != tiles.rows[c] || tiles.row_bytes[b] != tiles.row_bytes[c]) return false;
    if (tiles.row_bytes[a] != 4 * tiles.rows[b] || tiles.row_bytes[c] % 4) return false;
    unsigned mode = _mm_getcsr();
    _mm_setcsr(MASKED | FLUSH_TO_ZERO | DENORMALS_ARE_ZEROS);
    multiply_rows(c, a, b);
    _mm_setcsr(mode);
    return true;
}

/* ---- Instructions ----------------------------------------------------------------------------------------------------- */

typedef struct instruction {
    int size, prefix, opcode; /* prefix: none, 66, F3 or F2 */
    int reg, rm, source;      /* tiles; rm: where the operand is no memory, */
    uint8_t *memory;          /* else this, */
    int64_t index;            /* and its scaled index register, the stride of tiles */
} instruction;

/* VEX.128 of the opcode map 0F38 with W0, in its form of three bytes: all of AMX's. */
static bool decode(const uint8_t *at, const greg_t *registers, instruction *in)
{
    static const int names[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI, REG_R8, REG_R9, REG_R10,
        REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    if (at[0] != 0xc4 || (at[1] & 0x9f) != 0x82 || at[2] & 0x84) return false;
    int mode = at[4] >> 6, rm = at[4] & 7, base = rm | (~at[1] & 0x20) >> 2;
    *in = (instruction){.size = 5, .prefix = at[2] & 3, .opcode = at[3], .reg = at[4] >> 3 & 7, .rm = rm};
    in->source = ~at[2] >> 3 & 15;
    if (mode == 3) return true;
    if (rm != 4 && at[3] == 0x4b) return false; /* tiles in memory have an index: their stride */

    uint64_t address = 0;
    bool relative = mode == 0 && rm == 5, bare = relative;
    if (rm == 4) { /* a byte of scale, index and base follows */
        int sib = at[in->size++], index = (sib >> 3 & 7) | (~at[1] & 0x40) >> 3;
        base = (sib & 7) | (~at[1] & 0x20) >> 2;
        bare = mode == 0 && (sib & 7) == 5;
        if (index != 4) in->index = (int64_t)((uint64_t)registers[names[index]] << (sib >> 6));
    }
    if (!bare) address = (uint64_t)registers[names[base]];
    int32_t offset = 0;
    if (mode == 1) {
        offset = (int8_t)at[in->size++];
    } else if (mode == 2 || bare) {
        memcpy(&offset, at + in->size, sizeof offset);
        in->size += 4;
    }
    if (relative) address = (uint64_t)registers[REG_RIP] + (uint64_t)in->size;
    in->memory = (uint8_t *)(uintptr_t)(address + (uint64_t)(int64_t)offset); // NOLINT(performance-no-int-to-ptr)
    return true;
}

static bool perform(const instruction *in)
{
    enum { NONE, P66, PF3, PF2 };
    switch (in->opcode << 2 | in->prefix) {
    case 0x49 << 2 | NONE: /* LDTILECFG, or TILERELEASE */
        if (in->memory) return load_config(in->memory + in->index);
        memset(&tiles, 0, sizeof tiles);
        return in->reg == 0 && in->rm == 0;
    case 0x49 << 2 | P66: /* STTILECFG */
        if (in->memory) memcpy(in->memory + in->index, &tiles, CONFIG_BYTES);
        return in->memory;
    case 0x49 << 2 | PF2: /* TILEZERO */
        if (in->memory || !has_tile(in->reg)) return false;
        memset(tiles.row[in->reg], 0, sizeof tiles.row[0]);
        return true;
    case 0x4b << 2 | PF2: /* TILELOADD */
    case 0x4b << 2 | P66: /* TILELOADDT1 */
        return in->memory && load(in->reg, in->memory, in->index);
    case 0x4b << 2 | PF3: /* TILESTORED */
        return in->memory && store(in->reg, in->memory, in->index);
    case 0x5c << 2 | PF3: /* TDPBF16PS */
        return !in->memory && in->source < TILES && multiply(in->reg, in->rm, in->source);
    default: return false;
    }
}

/* Does the instruction that was refused, and those right behind it: a signal takes longer than they do. */
static void on_illegal(int number, siginfo_t *info, void *context)
{
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    instruction in;
    int done = 0;
    (void)info;
    for (;; done++) {
        const uint8_t *at = (const uint8_t *)(uintptr_t)registers[REG_RIP]; // NOLINT(performance-no-int-to-ptr)
        if (!decode(at, registers, &in) || !perform(&in)) break;
        registers[REG_RIP] += in.size;
    }
    atomic_fetch_add(&all_done, done);
    if (done == 0) sigaction(number, &(struct sigaction){.sa_handler = SIG_DFL}, NULL); /* it will be raised again */
}

static bool playing;

int64_t amx_double_done(void)
{
    return playing ? (int64_t)atomic_load(&all_done) : -1;
}

bool amx_double(void)
{
    if (!tr__has_avx512bf16()) return false;
    if (__real_tr__amx_permitted()) return true;
    struct sigaction action = {.sa_sigaction = on_illegal, .sa_flags = SA_SIGINFO};
    return playing = sigaction(SIGILL, &action, NULL) == 0;
}

__attribute__((target("amx-tile"))) int amx_palette(void)
{
    tile_state kept;
    __asm__ volatile("sttilecfg %0" : "=m"(kept));
    return kept.palette;
}

bool __wrap_tr__amx_permitted(void)
{
    return __real_tr__amx_permitted() || ((amx_everywhere || tr__isa_allowed() == TR__ISA_AMX) && amx_double());
}

/* cmocka sets a handler for SIGILL, too, before each test. */
__sighandler_t signal(int number, __sighandler_t handler)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART}, old;
    if (number == SIGILL && playing) return SIG_DFL;
    return sigaction(number, &action, &old) == 0 ? old.sa_handler : SIG_ERR;
}

#else

bool amx_double(void) { return false; }
int64_t amx_double_done(void) { return 0; }
int amx_palette(void) { return 0; }
bool __wrap_tr__amx_permitted(void) { return false; }

#endif
