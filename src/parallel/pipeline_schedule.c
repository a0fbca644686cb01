/*
 * Schedules, for 3 stages and 4 micro-batches (forwards 0 …, backwards a …; a backward takes twice as long):
 *
 *              GPipe (Huang et al. 2019)    1F1B (Narayanan et al., PipeDream, 2019)
 *   stage 0    0123......ddccbbaa           012....aa3bb.cc.dd    holds up to 3 micro-batches
 *   stage 1    .0123...ddccbbaa..           .01..aa2bb3cc.dd..    2
 *   stage 2    ..0123ddccbbaa....           ..0aa1bb2cc3dd....    1
 *
 * Both stand still for (p - 1)/(m + p - 1) of the time. GPipe keeps the activations of all m micro-batches, 1F1B those of at
 * most p - stage.
 */
#include "parallel/pipeline_schedule.h"

static tr__pipeline_action *forwards(tr__pipeline_action *out, int from, int to)
{
    for (int i = from; i < to; i++) *out++ = (tr__pipeline_action){false, i};
    return out;
}

void tr__pipeline_schedule(tr_pipeline_schedule schedule, int stage, int stages, int micro_batches,
    tr__pipeline_action *out)
{
    if (schedule == TR_GPIPE) {
        out = forwards(out, 0, micro_batches);
        for (int i = micro_batches; i-- > 0;) *out++ = (tr__pipeline_action){true, i};
        return;
    }
    /* As many forwards as there are stages behind this one; then a forward and a backward in turn; then the other backwards. */
    int ahead = stages - 1 - stage < micro_batches ? stages - 1 - stage : micro_batches;
    out = forwards(out, 0, ahead);
    for (int i = 0; i < micro_batches; i++) {
        if (ahead + i < micro_batches) *out++ = (tr__pipeline_action){false, ahead + i};
        *out++ = (tr__pipeline_action){true, i};
    }
}
