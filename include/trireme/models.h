/*
 * Trireme, models: written on the public API, in models/.
 */
#ifndef TRIREME_MODELS_H
#define TRIREME_MODELS_H

#include <trireme/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tr_gpt_options {
    size_t size;
    int vocab;        /* 0: 256, bytes */
    int context;      /* 0: 256, the longest sequence */
    int layers;       /* 0: 6 */
    int heads;        /* 0: 6 */
    int dim;          /* 0: 384; a multiple of heads */
    double dropout;
    uint64_t seed;
} tr_gpt_options;
/* GPT-2 (Radford et al. 2019) with Hugging Face's state-dict names (wte.weight, h.0.attn.c_attn.weight, … with weights
 * as [in, out]); the head is tied to wte. tr_forward(gpt, ids): i32 or i64 [batch, seq] -> logits [batch, seq, vocab]. */
#define tr_gpt(...) TR__NEW0(tr_gpt, __VA_ARGS__)
TR_API tr_module *tr_gpt_with(const tr_gpt_options *options);
/* The presets: "nano" (4 layers, 4 heads, 128 wide, context 64), "mini" (6, 6, 384, 256), "gpt2" (12, 12, 768, 1024,
 * vocabulary 50,257). Fills the size fields of options; TR_NOT_FOUND names the presets there are. */
TR_API TR_MUST_CHECK tr_status tr_gpt_preset(const char *name, tr_gpt_options *options);

#ifdef __cplusplus
}
#endif

#endif
