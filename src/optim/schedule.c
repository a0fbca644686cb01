#include "optim/optimizer.h"

#include <math.h>

static const double PI = 3.14159265358979323846;

double tr_cosine_lr_with(const tr_cosine_lr_options *options)
{
    double step = options->step > 0 ? (double)options->step : 0;
    double warmup = (double)options->warmup_steps, steps = (double)options->steps;
    if (step < warmup) return options->lr * (step + 1) / warmup;
    if (step >= steps) return options->min_lr;
    double done = (step - warmup) / (steps - warmup); /* in [0, 1) */
    return options->min_lr + 0.5 * (options->lr - options->min_lr) * (1 + cos(PI * done));
}

double tr_step_lr_with(const tr_step_lr_options *options)
{
    if (options->step_size < 1) return NAN;
    int64_t step = options->step > 0 ? options->step : 0, passed = step / options->step_size;
    return options->lr * pow(TR__OR(options, gamma, 0.1), (double)passed);
}

double tr_multi_step_lr_with(const tr_multi_step_lr_options *options)
{
    if (options->count < 1) return NAN;
    int passed = 0;
    for (int i = 0; i < options->count; i++) passed += options->step >= options->milestones[i];
    return options->lr * pow(TR__OR(options, gamma, 0.1), passed);
}

double tr_exponential_lr(int64_t step, double lr, double gamma)
{
    return lr * pow(gamma, step > 0 ? (double)step : 0);
}

/* How much of `steps` has passed, in [0, 1]. */
static double passed(int64_t step, int64_t steps)
{
    if (step >= steps) return 1;
    return step > 0 ? (double)step / (double)steps : 0;
}

double tr_warmup_lr(int64_t step, double lr, int64_t steps)
{
    return lr * passed(step + 1, steps);
}

double tr_linear_lr_with(const tr_linear_lr_options *options)
{
    double from = TR__OR(options, from, 1.0 / 3), to = TR__OR(options, to, 1);
    return options->lr * (from + (to - from) * passed(options->step, options->steps));
}

double tr_polynomial_lr_with(const tr_polynomial_lr_options *options)
{
    return options->lr * pow(1 - passed(options->step, options->steps), TR__OR(options, power, 1));
}

/* From a at 0 to b at 1. */
static double between(double a, double b, double at, bool linear)
{
    return linear ? a + (b - a) * at : b + (a - b) / 2 * (1 + cos(PI * at));
}

double tr_one_cycle_lr_with(const tr_one_cycle_lr_options *options)
{
    double steps = (double)options->steps, most = options->lr, first = most / TR__OR(options, divide, 25);
    double least = first / TR__OR(options, final_divide, 1e4), rise = TR__OR(options, rise, 0.3);
    if (!(rise >= 0 && rise <= 1) || !isfinite(first) || !isfinite(least)) return NAN;
    /* Phases end at these steps with these rates. */
    const double ends[] = {rise * steps - 1, 2 * rise * steps - 2, steps - 1}, rates[] = {most, first, least};
    double step = options->step > 0 ? (double)options->step : 0, begin = 0, rate = first;
    if (step >= steps - 1) return least;
    for (int i = 0; i < 3; i++) {
        if (i == 1 && !options->three_phase) continue;
        if (step == ends[i]) return rates[i]; /* its end, also where it has no length */
        if (step < ends[i]) return between(rate, rates[i], (step - begin) / (ends[i] - begin), options->linear);
        begin = ends[i];
        rate = rates[i];
    }
    return least;
}

double tr_sequential_lr(int64_t step, const tr_lr_phase *phases, int count)
{
    if (count < 1) return NAN;
    int at = 0;
    for (; at + 1 < count && step >= phases[at].steps; at++) step -= phases[at].steps;
    return phases[at].lr(step, phases[at].user);
}

static bool is_better(const tr_plateau_lr_options *o)
{
    double threshold = TR__OR(o, threshold, 1e-4), best = o->state->best, sign = o->maximize ? 1 : -1;
    double mark = o->absolute ? best + sign * threshold : best * (1 + sign * threshold);
    return o->maximize ? o->metric > mark : o->metric < mark;
}

double tr_plateau_lr_with(const tr_plateau_lr_options *o)
{
    tr_plateau *s = o->state;
    int64_t patience = TR__OR(o, patience, 10);
    if (patience < 0) patience = 0;
    if (!s->begun) *s = (tr_plateau){.lr = o->lr, .best = o->maximize ? -INFINITY : INFINITY, .begun = true};
    bool better = is_better(o);
    if (better) s->best = o->metric;
    s->bad = better || s->rest > 0 ? 0 : s->bad + 1;
    if (s->rest > 0) s->rest--;
    if (s->bad <= patience) return s->lr;
    double next = fmax(s->lr * TR__OR(o, factor, 0.1), o->min_lr);
    if (s->lr - next > 1e-8) s->lr = next; /* PyTorch's eps; a rate below min_lr stays as it is */
    s->rest = o->cooldown;
    s->bad = 0;
    return s->lr;
}
