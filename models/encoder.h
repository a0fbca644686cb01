/* What models with a stack of layers share: running it, and a layer of a Transformer's encoder, under the names that a model wants:
 * the Transformer's own, and the Vision Transformer's. */
#ifndef TRIREME_MODELS_ENCODER_H
#define TRIREME_MODELS_ENCODER_H

#include <trireme/models.h>

typedef struct tr__layer_names {
    const char *attention, *norms[3]; /* the last norm is a decoder's */
    const char *mlp;                  /* what holds the two linear layers; NULL: the layer itself */
    const char *linear1, *linear2;
} tr__layer_names;

/* Runs layers, one behind the other, each on what the last one made and n inputs besides. Releases each layer's input, x too, once
 * its output exists, not when the caller's scope ends: x comes, and the result goes, with a reference of the caller's. */
tr_tensor *tr__run_layers(tr_module *const *layers, int count, tr_tensor *x, tr_tensor *const *besides, int n);

/* options: with the defaults filled in. tr_forward(layer, x), tr_forward(layer, x, mask): [batch, seq, dim] -> the same */
tr_module *tr__encoder_layer(const tr_transformer_options *options, const tr__layer_names *names, uint64_t *seed);

/* A linear layer that starts at Xavier's deviation, with a bias of zeros. */
tr_module *tr__xavier_linear(int64_t in, int64_t out, tr_activation_kind activation, uint64_t *seed);

#endif
