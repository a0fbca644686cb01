#include <trireme/optim.h>

#include <math.h>

double tr_cosine_lr_with(const tr_cosine_lr_options *options)
{
    double step = options->step > 0 ? (double)options->step : 0;
    double warmup = (double)options->warmup_steps, steps = (double)options->steps;
    if (step < warmup) return options->lr * (step + 1) / warmup;
    if (step >= steps) return options->min_lr;
    double done = (step - warmup) / (steps - warmup); /* in [0, 1) */
    return options->min_lr + 0.5 * (options->lr - options->min_lr) * (1 + cos(3.14159265358979323846 * done));
}
