#include "ops/onednn/engine.h"

#include "base/isa.h"
#include "ops/onednn/kernels.h"

#include <oneapi/dnnl/dnnl_debug.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* Process-wide, found once: the OpenMP runtime that libdnnl brought into the process, whichever it is. Linking one here
 * could bring in a second, whose setting oneDNN would not see. NULL when oneDNN was built without OpenMP. */
static struct {
    pthread_once_t once;
    int (*max_threads)(void);
    void (*set_threads)(int);
} openmp = {.once = PTHREAD_ONCE_INIT};

/* Before oneDNN is called for the first time. */
static void begin(void)
{
    static const dnnl_cpu_isa_t most[] = {dnnl_cpu_isa_sse41, dnnl_cpu_isa_avx2, dnnl_cpu_isa_avx512_core,
        dnnl_cpu_isa_avx512_core_bf16};
    tr__isa allowed = tr__isa_allowed();
    /* It refuses once it has computed, for a program that calls it, too: then it is what it is. */
    if (allowed < TR__ISA_AMX) (void)dnnl_set_max_cpu_isa(most[allowed]);
    *(void **)&openmp.max_threads = dlsym(RTLD_DEFAULT, "omp_get_max_threads");
    *(void **)&openmp.set_threads = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
    if (!openmp.max_threads) openmp.set_threads = NULL;
}

int tr__onednn_enter(void)
{
    pthread_once(&openmp.once, begin);
    if (!openmp.set_threads) return 1;
    int threads = openmp.max_threads(); /* the calling thread's own setting, as is the next */
    if (threads != 1) openmp.set_threads(1);
    return threads;
}

void tr__onednn_leave(int threads)
{
    if (threads != 1) openmp.set_threads(threads);
}

/* The instructions that oneDNN uses, at most those that TRIREME_ISA allows. */
static dnnl_cpu_isa_t isa_of_onednn(void)
{
    pthread_once(&openmp.once, begin);
    return dnnl_get_effective_cpu_isa();
}

bool tr__onednn_has(dnnl_cpu_isa_t instructions)
{
    return ((unsigned)isa_of_onednn() & (unsigned)instructions) == (unsigned)instructions;
}

bool tr__onednn_has_matrix_units(void)
{
    return tr__onednn_has(dnnl_cpu_isa_avx512_core_amx);
}

char *tr__onednn_text(char text[TR__ONEDNN_TEXT])
{
    static const char prefix[] = "cpu_isa_";
    const dnnl_version_t *v = dnnl_version();
    const char *isa = dnnl_cpu_isa2str(isa_of_onednn());
    if (strncmp(isa, prefix, sizeof prefix - 1) == 0) isa += sizeof prefix - 1;
    snprintf(text, TR__ONEDNN_TEXT, "oneDNN %d.%d.%d for %s", v->major, v->minor, v->patch, isa);
    return text;
}

tr_status tr__onednn_fail(dnnl_status_t status, const char *what)
{
    if (status == dnnl_success) return TR_OK;
    if (status == dnnl_out_of_memory) return tr__fail(TR_NO_MEMORY, "%s: oneDNN is out of memory", what);
    return tr__fail(TR_INTERNAL, "%s: oneDNN failed with status %d", what, (int)status);
}
