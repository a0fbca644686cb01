#include "comm_numbers.h"

#include <math.h>

double sample(tr_dtype dtype, int number, int64_t i)
{
    int n = (int)((i * 7 + number * 5 + (i >> 6)) % 3);
    return dtype == TR_BOOL ? n == 0 : n;
}

double reduced(tr_dtype dtype, tr_reduce_op op, int world, int64_t i)
{
    double sum = 0, product = 1, least = 9, most = 0;
    int all = 255, any = 0, odd = 0;
    for (int n = 0; n < world; n++) {
        double x = sample(dtype, n, i);
        all &= (int)x, any |= (int)x, odd ^= (int)x;
        sum += x;
        product *= x;
        least = fmin(least, x);
        most = fmax(most, x);
    }
    if (op >= TR_BAND) return op == TR_BAND ? all : op == TR_BOR ? any : odd;
    if (op == TR_SUM) return dtype == TR_BOOL ? most : sum;
    if (op == TR_AVG) return tr_dtype_is_float(dtype) ? sum / world : trunc(sum / world);
    return op == TR_MIN ? least : op == TR_MAX ? most : product;
}

bool near_enough(tr_dtype dtype, double a, double b)
{
    double digits = dtype == TR_BF16 ? 0x1p-8 : dtype == TR_F16 ? 0x1p-11 : dtype == TR_F32 ? 0x1p-22 : 0x1p-50;
    return fabs(a - b) <= digits * fabs(b);
}

bool op_exists(tr_dtype dtype, tr_reduce_op op)
{
    if (op >= TR_BAND) return !tr_dtype_is_float(dtype);
    return dtype != TR_BOOL || op != TR_AVG;
}
