#include "train/eval_mode.h"

#include "base/memory.h"
#include "nn/module.h"

#include <stdlib.h>

static tr_status note(tr__walk *walk, tr_module *module)
{
    tr__modes *m = walk->user;
    if (!tr__grow(&m->training, m->count, &m->room, sizeof *m->training))
        return tr__fail(TR_NO_MEMORY, "evaluate: out of memory");
    m->training[m->count++] = !module->mode.evaluating;
    return TR_OK;
}

static tr_status restore(tr__walk *walk, tr_module *module)
{
    tr__modes *m = walk->user;
    module->mode.evaluating = !m->training[m->at++];
    return TR_OK;
}

tr_status tr__eval_begin(tr__modes *m, tr_module *net)
{
    *m = (tr__modes){0};
    tr__walk walk = {.module = note, .user = m};
    tr_status status = tr__module_walk(net, &walk);
    if (status == TR_OK) status = tr_eval(net);
    if (status != TR_OK) free(m->training);
    return status;
}

void tr__eval_end(tr__modes *m, tr_module *net)
{
    tr__walk walk = {.module = restore, .user = m};
    (void)tr__module_walk(net, &walk); /* it went well a moment ago */
    free(m->training);
}
