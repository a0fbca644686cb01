#define ROUND tr__round_avx2
#include "optim/round.h"
