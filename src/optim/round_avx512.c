#define ROUND tr__round_avx512
#include "optim/round.h"
