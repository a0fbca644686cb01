#include "optim/optimizer.h"

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

double tr_step_lr_with(const tr_step_lr_options *options)
{
    if (options->step_size < 1) return NAN;
    int64_t step = options->step > 0 ? options->step : 0, passed = step / options->step_size;
    return options->lr * pow(tr__option(options->gamma, 0.1), (double)passed);
}

double tr_multi_step_lr_with(const tr_multi_step_lr_options *options)
{
    int passed = 0;
    for (int i = 0; i < options->count; i++) passed += options->step >= options->milestones[i];
    return options->lr * pow(tr__option(options->gamma, 0.1), passed);
}

double tr_exponential_lr(int64_t step, double lr, double gamma)
{
    return lr * pow(gamma, step > 0 ? (double)step : 0);
}
