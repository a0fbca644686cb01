/*
 * Trireme, models: written on the public API, in models/.
 */
#ifndef TRIREME_MODELS_H
#define TRIREME_MODELS_H

#include <trireme/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tr_lenet_options {
    size_t size;
    const char *given;
    int classes;      /* default 10 */
    uint64_t seed; /* default: tr_next_seed() */
} tr_lenet_options;
/* LeNet-5 (LeCun et al. 1998) with ReLU and max pooling: conv1, conv2, fc1, fc2, fc3. tr_forward(net, images):
 * [batch, 1, 28, 28] -> logits [batch, classes]. */
#define tr_lenet(...) TR__NEW0(tr_lenet, __VA_ARGS__)
TR_API tr_module *tr_lenet_with(const tr_lenet_options *options);

typedef struct tr_gpt_options {
    size_t size;
    const char *given;
    int vocab;        /* default 256, bytes */
    int context;      /* default 256, the longest sequence */
    int layers;       /* default 6 */
    int heads;        /* default 6 */
    int dim;          /* default 384; a multiple of heads */
    double dropout;
    uint64_t seed; /* default: tr_next_seed() */
} tr_gpt_options;
/* GPT-2 (Radford et al. 2019) with Hugging Face's state-dict names (wte.weight, h.0.attn.c_attn.weight, … with weights
 * as [in, out]); the head is tied to wte. tr_forward(gpt, ids): i32 or i64 [batch, seq] -> logits [batch, seq,
 * vocab]. */
#define tr_gpt(...) TR__NEW0(tr_gpt, __VA_ARGS__)
TR_API tr_module *tr_gpt_with(const tr_gpt_options *options);
/* The presets: "nano" (4 layers, 4 heads, 128 wide, context 64), "mini" (6, 6, 384, 256), and with a context of 1,024
 * and a vocabulary of 50,257 "gpt2" (12, 12, 768), "gpt2-medium" (24, 16, 1024), "gpt2-large" (36, 20, 1280), "gpt2-xl"
 * (48, 25, 1600). Fills the size fields of options; TR_NOT_FOUND names the presets there are. */
TR_API TR_MUST_CHECK tr_status tr_gpt_preset(const char *name, tr_gpt_options *options);

typedef enum tr_bert_head {
    TR_BERT_BARE,       /* -> [batch, seq, dim] */
    TR_BERT_MASKED_LM,  /* -> logits [batch, seq, vocab]; its matrix is tied to the word embedding */
    TR_BERT_CLASSIFIER, /* -> logits [batch, classes], from the first token */
} tr_bert_head;
typedef struct tr_bert_options {
    size_t size;
    const char *given;
    tr_bert_head head;
    int vocab;      /* default 30,522 */
    int positions;  /* default 512, the longest sequence */
    int types;      /* of tokens (first or second sentence); default 2 */
    int layers;     /* default 12 */
    int heads;      /* default 12 */
    int dim;        /* default 768; a multiple of heads */
    int inner;      /* default 4 dim */
    int classes;    /* default 2 */
    double dropout; /* of embeddings and sums, not of attention's probabilities */
    uint64_t seed; /* default: tr_next_seed() */
} tr_bert_options;
/* BERT (Devlin et al. 2019), by default the base size, with Hugging Face's state-dict names
 * (bert.encoder.layer.0.attention.self.query.weight, …, cls.predictions.bias, classifier.weight). tr_forward(bert,
 * ids), tr_forward(bert, ids, mask), tr_forward(bert, ids, mask, types): i32 or i64 [batch, seq], the mask bool (true:
 * a token, false: padding) or NULL. With a fourth input, positions: i32 or i64 [n], the masked-LM head gives logits [n,
 * vocab] of these only. A position is sample * seq + token (masked_lm_positions in the paper's program). */
#define tr_bert(...) TR__NEW0(tr_bert, __VA_ARGS__)
TR_API tr_module *tr_bert_with(const tr_bert_options *options);
/* The mean cross-entropy of a masked LM's logits with labels: i32 or i64 [batch, seq], -100 where nothing is predicted.
 * Loss and gradients are those of tr_cross_entropy(tr_forward(net, ids, mask, types), labels), but logits are computed
 * only at the labels: with BERT's usual 15 % of the tokens, a seventh of the head's work and memory. net: such a BERT,
 * also within tr_ddp(), not within tr_data_parallel(), which would split the positions. mask and types may be NULL. */
TR_API tr_tensor *tr_bert_loss(tr_module *net, tr_tensor *ids, tr_tensor *mask, tr_tensor *types, tr_tensor *labels);
/* The presets: "nano" (4 layers, 4 heads, 128 wide, 64 positions, vocabulary 259: bytes and three special tokens),
 * "mini" (6, 6, 384, 256, 259), "base" (12, 12, 768, 512, 30,522), "large" (24, 16, 1024, 512, 30,522). As
 * tr_gpt_preset(). */
TR_API TR_MUST_CHECK tr_status tr_bert_preset(const char *name, tr_bert_options *options);

typedef struct tr_transformer_options {
    size_t size;
    const char *given;
    int dim;            /* default 512; a multiple of heads */
    int heads;          /* default 8 */
    int layers;         /* of the encoder, or of an encoder or decoder alone; default 6 */
    int decoder_layers; /* of a whole Transformer; default: layers */
    int inner;          /* the width between a layer's two linear modules; default 4 dim */
    double dropout;     /* of sums and of the inner activations, not of attention's probabilities */
    double eps;         /* of norms; default 1e-5 */
    tr_activation_kind activation; /* default TR_RELU */
    bool norm_first;    /* norms before each part of a layer, not after its sum (pre-norm) */
    bool causal;        /* no token attends to later ones; in a whole Transformer, in the decoder */
    bool final_norm;    /* a norm after the last layer of an encoder or decoder alone; a whole Transformer has both */
    uint64_t seed; /* default: tr_next_seed() */
} tr_transformer_options;
/* The Transformer (Vaswani et al. 2017) with PyTorch's state-dict names (encoder.layers.0.self_attn.in_proj_weight, …),
 * batch first: tr_forward(net, src, tgt): [batch, seq, dim] each -> as tgt. Masks of src, tgt and memory may follow,
 * each of them or NULL: bool, true where attention is allowed, [batch, keys] (false: padding) or, with four dimensions,
 * as in tr_attention(). Matrices have Xavier initialization. */
#define tr_transformer(...) TR__NEW0(tr_transformer, __VA_ARGS__)
TR_API tr_module *tr_transformer_with(const tr_transformer_options *options);
/* One half alone: tr_forward(encoder, x), tr_forward(encoder, x, mask); tr_forward(decoder, x, memory), and then masks
 * of x and memory. */
#define tr_transformer_encoder(...) tr_transformer_encoder_with(TR__NAMED_OPTIONS0(tr_transformer_options, __VA_ARGS__))
#define tr_transformer_decoder(...) tr_transformer_decoder_with(TR__NAMED_OPTIONS0(tr_transformer_options, __VA_ARGS__))
TR_API tr_module *tr_transformer_encoder_with(const tr_transformer_options *options);
TR_API tr_module *tr_transformer_decoder_with(const tr_transformer_options *options);

typedef struct tr_resnet_options {
    size_t size;
    const char *given;
    int classes;   /* default 1,000 */
    int channels;  /* of the images; default 3 */
    uint64_t seed; /* default: tr_next_seed() */
} tr_resnet_options;
/* Residual networks (He et al. 2016) with torchvision's state-dict names (conv1.weight, layer1.0.bn1.running_mean, …,
 * fc.bias): with 18 and 34 layers of basic blocks, 50 and 101 of bottlenecks with the stride in the 3x3 convolution.
 * tr_forward(net, x): [batch, channels, height, width] -> logits [batch, classes]; sizes from 32 up. */
#define tr_resnet18(...) tr_resnet18_with(TR__NAMED_OPTIONS0(tr_resnet_options, __VA_ARGS__))
#define tr_resnet34(...) tr_resnet34_with(TR__NAMED_OPTIONS0(tr_resnet_options, __VA_ARGS__))
#define tr_resnet50(...) tr_resnet50_with(TR__NAMED_OPTIONS0(tr_resnet_options, __VA_ARGS__))
#define tr_resnet101(...) tr_resnet101_with(TR__NAMED_OPTIONS0(tr_resnet_options, __VA_ARGS__))
TR_API tr_module *tr_resnet18_with(const tr_resnet_options *options);
TR_API tr_module *tr_resnet34_with(const tr_resnet_options *options);
TR_API tr_module *tr_resnet50_with(const tr_resnet_options *options);
TR_API tr_module *tr_resnet101_with(const tr_resnet_options *options);

typedef struct tr_vgg_options {
    size_t size;
    const char *given;
    int classes;     /* default 1,000 */
    int channels;    /* of the images; default 3 */
    bool batch_norm; /* a batch norm after each convolution: torchvision's vgg11_bn, … */
    double dropout;  /* default 0.5 */
    uint64_t seed; /* default: tr_next_seed() */
} tr_vgg_options;
/* VGG (Simonyan & Zisserman 2015) with torchvision's state-dict names (features.0.weight, …, classifier.6.bias).
 * tr_forward(net, x): [batch, channels, height, width] -> logits [batch, classes]; sizes from 32 up. Its dropouts need
 * tr_seed() in training. */
#define tr_vgg11(...) tr_vgg11_with(TR__NAMED_OPTIONS0(tr_vgg_options, __VA_ARGS__))
#define tr_vgg13(...) tr_vgg13_with(TR__NAMED_OPTIONS0(tr_vgg_options, __VA_ARGS__))
#define tr_vgg16(...) tr_vgg16_with(TR__NAMED_OPTIONS0(tr_vgg_options, __VA_ARGS__))
#define tr_vgg19(...) tr_vgg19_with(TR__NAMED_OPTIONS0(tr_vgg_options, __VA_ARGS__))
TR_API tr_module *tr_vgg11_with(const tr_vgg_options *options);
TR_API tr_module *tr_vgg13_with(const tr_vgg_options *options);
TR_API tr_module *tr_vgg16_with(const tr_vgg_options *options);
TR_API tr_module *tr_vgg19_with(const tr_vgg_options *options);

typedef struct tr_vit_options {
    size_t size;
    const char *given;
    int classes;    /* default 1,000 */
    int channels;   /* of the images; default 3 */
    int image;      /* their height and width; default 224 */
    int patch;      /* the side of a patch, which is a token; default 16; divides image */
    int layers;     /* default 12 */
    int heads;      /* default 12 */
    int dim;        /* default 768; a multiple of heads */
    int inner;      /* default 4 dim */
    double dropout; /* of tokens, sums and inner activations, not of attention's probabilities */
    uint64_t seed; /* default: tr_next_seed() */
} tr_vit_options;
/* The Vision Transformer (Dosovitskiy et al. 2021), by default vit_b_16, with torchvision's state-dict names
 * (class_token, conv_proj.weight, encoder.layers.encoder_layer_0.ln_1.weight, …, heads.head.bias). tr_forward(net, x):
 * [batch, channels, image, image] -> logits [batch, classes], which are 0 at the start. */
#define tr_vit(...) TR__NEW0(tr_vit, __VA_ARGS__)
TR_API tr_module *tr_vit_with(const tr_vit_options *options);
/* The presets: torchvision's "vit_b_16", "vit_b_32", "vit_l_16", "vit_l_32" and "vit_h_14" for images of 224, and
 * "vit_nano" (32, patches of 4, 4 layers, 4 heads, 64 wide). Fills in image, patch, layers, heads and dim; TR_NOT_FOUND
 * names them. */
TR_API TR_MUST_CHECK tr_status tr_vit_preset(const char *name, tr_vit_options *options);

#ifdef __cplusplus
}
#endif

#endif
