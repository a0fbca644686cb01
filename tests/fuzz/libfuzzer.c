/* What libFuzzer is to do besides its own mutations: begin with sound inputs. */
#include "fuzz.h"

size_t LLVMFuzzerMutate(uint8_t *bytes, size_t count, size_t most);
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t count, size_t most, unsigned seed);

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t count, size_t most, unsigned seed)
{
    if (most < FUZZ_SEED || (count > 1 && seed % 32 != 0)) return LLVMFuzzerMutate(bytes, count, most);
    return fuzz_seed(seed, bytes);
}
