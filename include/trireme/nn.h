/*
 * Trireme, modules: parameters with a forward. A module owns its parameters and child modules, by name.
 *
 * tr_forward() runs a module in a scope of its own, so intermediate tensors are released when it returns.
 */
#ifndef TRIREME_NN_H
#define TRIREME_NN_H

#include <trireme/autograd.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tr_module tr_module;

/* ---- Using modules --------------------------------------------------------------------------------------------- */

/* tr_forward(net, x) or tr_forward(net, a, b): the module's output. An error's message has the path of the module. */
#ifndef __cplusplus
#define tr_forward(module, ...) \
    tr_forward_n(                                   \
        (module), (tr_tensor *[]){__VA_ARGS__}, (int)(sizeof((tr_tensor *[]){__VA_ARGS__}) / sizeof(tr_tensor *)))
#endif
TR_API tr_tensor *tr_forward_n(tr_module *module, tr_tensor *const *inputs, int n);
/* Runs a module with several outputs, such as tr_lstm(). outputs gets its first n_outputs, at most as many as it has;
 * after a failure all of them are in error. tr_forward() returns only the first output, which every module has. */
TR_API TR_MUST_CHECK tr_status tr_forward_many(tr_module *module, tr_tensor *const *inputs, int n, tr_tensor **outputs,
    int n_outputs);

/* All parameters, in the order they were added, depth first. A tied parameter appears once, under its first name. */
TR_API tr_tensor_list *tr_parameters(tr_module *module);
/* Parameters and buffers by their path, "h.0.attn.c_attn.weight". The tensors are the module's own, not copies. */
TR_API tr_tensor_list *tr_state_dict(tr_module *module);

/* Renames entries of a state dict: a name that matches from, where * is any run of characters, becomes to, whose * is
 * that run. With a NULL to the entry is left out. {"transformer.*", "*"}, {"*.attn.bias", NULL} */
typedef struct tr_rename {
    const char *from, *to;
} tr_rename;
typedef struct tr_load_state_dict_options {
    size_t size;
    const char *given;
    tr_module *module;
    const tr_tensor_list *state;
    const tr_rename *rename; /* applied to every name in turn; ends with a NULL from. NULL: no renaming */
    const char *partial;     /* patterns as in tr_rename, separated by spaces, of names that may differ: a parameter
                                that the state lacks or has in another shape keeps its values, and an entry that the
                                module lacks is left out. "*": all names; NULL: every name and shape must match */
    tr_load_report *report;  /* filled in, also on failure; or NULL */
} tr_load_state_dict_options;
/* Copies values from state into the module by name, and converts dtypes: tr_load_state_dict(net, state, .partial =
 * "fc.*"). After a mismatch nothing is changed. Loading no entry at all is an error. */
#define tr_load_state_dict(...) \
    tr_load_state_dict_with(TR__BRACES2(tr_load_state_dict_options, module, state, __VA_ARGS__))
TR_API TR_MUST_CHECK tr_status tr_load_state_dict_with(const tr_load_state_dict_options *options);
/* Moves parameters, their gradients and buffers; the tensors stay the same objects. Call it before making an optimizer
 * or DDP. */
TR_API TR_MUST_CHECK tr_status tr_module_to(tr_module *module, tr_device device);
TR_API TR_MUST_CHECK tr_status tr_train(tr_module *module); /* the mode modules start in */
TR_API TR_MUST_CHECK tr_status tr_eval(tr_module *module);  /* dropout off */

/* Freezes the module's parameters: they require no gradient, and existing gradients are dropped. Optimizers, clipping,
 * tr_ddp() and tr_shard_optimizer() skip them, weight decay and momentum included, also when they were made before.
 * tr_freeze(module, false) undoes it; an optimizer's state for them continues where it stopped. Call it between steps,
 * and on all ranks of a tr_ddp() alike. Buffers are not parameters: batch norm updates its own until tr_eval(). */
TR_API TR_MUST_CHECK tr_status tr_freeze(tr_module *module, bool frozen);

/* Computes the module's activations again in backward instead of saving them, as tr_checkpoint() of its forward. Best
 * for each block of a deep net. */
TR_API TR_MUST_CHECK tr_status tr_set_recompute(tr_module *module, bool on);

typedef struct tr_seed_options {
    size_t size;
    const char *given;
    tr_module *module;
    uint64_t seed;
    uint64_t step;         /* the training step, */
    uint64_t first_sample; /* and the global number of the batch's first sample: see tr_dropout */
} tr_seed_options;
/* Sets the random numbers that the module's dropouts draw next: call it before each forward in training. */
#define tr_seed(...) TR__NEW2(tr_seed, module, seed, __VA_ARGS__)
TR_API TR_MUST_CHECK tr_status tr_seed_with(const tr_seed_options *options);

/* ---- Modules that come with the library -------------------------------------------------------------------------- */

/* The calling thread's next seed: what a layer or model without a .seed takes. Each module so starts with other values,
 * and with the same values in every run and on every rank whose thread has made as many modules before. Give a .seed
 * where that does not hold: where only some ranks make another module first, and in functions that any thread may run,
 * such as RPC functions. A model takes one seed for all its layers; so can a program's own module. Never 0. */
TR_API uint64_t tr_next_seed(void);

typedef struct tr_linear_options {
    size_t size;
    const char *given;
    int64_t in_features, out_features;
    bool no_bias;
    bool in_out;       /* weight is [in, out], as GPT-2's Conv1D; otherwise [out, in] */
    tr_activation_kind activation; /* applied to the input within the gemm: cheaper than a module before this one */
    double init_std;   /* weight normal(0, init_std), zero bias; default: both uniform(-1/sqrt(in), 1/sqrt(in)), as
                          PyTorch */
    uint64_t seed;     /* default: tr_next_seed() */
    tr_dtype dtype;
} tr_linear_options;
/* tr_forward(linear, x), or tr_forward(linear, x, residual): the residual is added within the gemm. */
#define tr_linear(...) TR__NEW2(tr_linear, in_features, out_features, __VA_ARGS__)
TR_API tr_module *tr_linear_with(const tr_linear_options *options);

typedef struct tr_embedding_options {
    size_t size;
    const char *given;
    int64_t rows, dim;
    double init_std;   /* default 1 */
    uint64_t seed;     /* default: tr_next_seed() */
    tr_dtype dtype;
} tr_embedding_options;
#define tr_embedding(...) TR__NEW2(tr_embedding, rows, dim, __VA_ARGS__)
TR_API tr_module *tr_embedding_with(const tr_embedding_options *options);

typedef struct tr_layer_norm_options {
    size_t size;
    const char *given;
    int64_t dim;
    double eps;        /* default 1e-5 */
    tr_dtype dtype;
} tr_layer_norm_options;
#define tr_layer_norm(...) TR__NEW1(tr_layer_norm, dim, __VA_ARGS__)
TR_API tr_module *tr_layer_norm_with(const tr_layer_norm_options *options);

typedef struct tr_rms_norm_options {
    size_t size;
    const char *given;
    int64_t dim;
    double eps;        /* default 1e-6 */
    tr_dtype dtype;
} tr_rms_norm_options;
#define tr_rms_norm(...) TR__NEW1(tr_rms_norm, dim, __VA_ARGS__)
TR_API tr_module *tr_rms_norm_with(const tr_rms_norm_options *options);

typedef struct tr_group_norm_options {
    size_t size;
    const char *given;
    int64_t groups, channels; /* groups divides channels */
    double eps;        /* default 1e-5 */
    tr_dtype dtype;
} tr_group_norm_options;
#define tr_group_norm(...) TR__NEW2(tr_group_norm, groups, channels, __VA_ARGS__)
TR_API tr_module *tr_group_norm_with(const tr_group_norm_options *options);

typedef struct tr_multihead_attention_options {
    size_t size;
    const char *given;
    int64_t dim;
    int heads;         /* dim is a multiple of it */
    bool causal;
    uint64_t seed;     /* default: tr_next_seed() */
    tr_dtype dtype;
} tr_multihead_attention_options;
/* PyTorch's, with batch first: parameters in_proj_weight [3*dim, dim], in_proj_bias, out_proj.weight, out_proj.bias.
 * tr_forward(attention, x): self-attention of x: [batch, seq, dim]; or tr_forward(attention, query, key, value). -> as
 * query. A mask may follow, or NULL: bool, true where attention is allowed, [batch, keys] (false: padding) or, with
 * four dimensions, as in tr_attention(). */
#define tr_multihead_attention(...) TR__NEW2(tr_multihead_attention, dim, heads, __VA_ARGS__)
TR_API tr_module *tr_multihead_attention_with(const tr_multihead_attention_options *options);

typedef struct tr_recurrent_options {
    size_t size;
    const char *given;
    int64_t input, hidden; /* features of a step, and of the hidden state */
    int layers;        /* default 1, at most 16 */
    bool bidirectional; /* a second pass from the last step to the first; the outputs stand side by side */
    bool no_bias;
    double dropout;    /* of each layer's output but the last one's, in training: see tr_seed() */
    bool relu;         /* of tr_rnn() alone: instead of tanh */
    uint64_t seed;     /* default: tr_next_seed() */
    tr_dtype dtype;
} tr_recurrent_options;
/* PyTorch's, with batch first and its names: weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, with _reverse behind.
 * x: [batch, seq, input] -> output: [batch, seq, directions*hidden], and the last states h and, of an LSTM, c:
 * [layers*directions, batch, hidden]. tr_forward(lstm, x) gives the output; the states come and go by
 * tr_forward_many(lstm, (tr_tensor *[]){x, h, c}, 3, outputs, 3). States that are not given are zeros. */
#define tr_rnn(...) tr_rnn_with(TR__NAMED_OPTIONS2(tr_recurrent_options, input, hidden, __VA_ARGS__))
#define tr_lstm(...) tr_lstm_with(TR__NAMED_OPTIONS2(tr_recurrent_options, input, hidden, __VA_ARGS__))
#define tr_gru(...) tr_gru_with(TR__NAMED_OPTIONS2(tr_recurrent_options, input, hidden, __VA_ARGS__))
TR_API tr_module *tr_rnn_with(const tr_recurrent_options *options);
TR_API tr_module *tr_lstm_with(const tr_recurrent_options *options);
TR_API tr_module *tr_gru_with(const tr_recurrent_options *options);

/* Images: [batch, channels, height, width] (see ops.h). */
typedef struct tr_conv2d_options {
    size_t size;
    const char *given;
    int64_t in_channels, out_channels;
    int kernel;        /* height and width */
    int stride;        /* default 1 */
    int padding;
    int dilation;      /* default 1 */
    int groups;        /* default 1 */
    bool no_bias;
    double init_std;   /* as tr_linear()'s: default uniform(-1/sqrt(fan in), 1/sqrt(fan in)) */
    uint64_t seed;     /* default: tr_next_seed() */
    tr_dtype dtype;
} tr_conv2d_options;
#define tr_conv2d(...) TR__NEW3(tr_conv2d, in_channels, out_channels, kernel, __VA_ARGS__)
TR_API tr_module *tr_conv2d_with(const tr_conv2d_options *options);

typedef struct tr_conv_transpose2d_options {
    size_t size;
    const char *given;
    int64_t in_channels, out_channels;
    int kernel;
    int stride;        /* default 1 */
    int padding;
    int output_padding; /* see ops.h */
    int dilation;      /* default 1 */
    int groups;        /* default 1 */
    bool no_bias;
    double init_std;   /* as tr_conv2d()'s; fan in is out/groups times the kernel, as in PyTorch */
    uint64_t seed;     /* default: tr_next_seed() */
    tr_dtype dtype;
} tr_conv_transpose2d_options;
#define tr_conv_transpose2d(...) TR__NEW3(tr_conv_transpose2d, in_channels, out_channels, kernel, __VA_ARGS__)
TR_API tr_module *tr_conv_transpose2d_with(const tr_conv_transpose2d_options *options);

/* For sequences: [batch, channels, length]. */
typedef tr_conv2d_options tr_conv1d_options;
typedef tr_conv_transpose2d_options tr_conv_transpose1d_options;
#define tr_conv1d(...) TR__NEW3(tr_conv1d, in_channels, out_channels, kernel, __VA_ARGS__)
#define tr_conv_transpose1d(...) TR__NEW3(tr_conv_transpose1d, in_channels, out_channels, kernel, __VA_ARGS__)
TR_API tr_module *tr_conv1d_with(const tr_conv1d_options *options);
TR_API tr_module *tr_conv_transpose1d_with(const tr_conv_transpose1d_options *options);

typedef struct tr_pool2d_layer_options {
    size_t size;
    const char *given;
    int kernel;
    int stride;        /* default: kernel */
    int padding;
} tr_pool2d_layer_options;
#define tr_max_pool2d_layer(...) tr_max_pool2d_layer_with(TR__NAMED_OPTIONS1(tr_pool2d_layer_options, kernel, __VA_ARGS__))
#define tr_avg_pool2d_layer(...) tr_avg_pool2d_layer_with(TR__NAMED_OPTIONS1(tr_pool2d_layer_options, kernel, __VA_ARGS__))
TR_API tr_module *tr_max_pool2d_layer_with(const tr_pool2d_layer_options *options);
TR_API tr_module *tr_avg_pool2d_layer_with(const tr_pool2d_layer_options *options);
TR_API tr_module *tr_adaptive_avg_pool2d_layer(int64_t height, int64_t width);
TR_API tr_module *tr_adaptive_max_pool2d_layer(int64_t height, int64_t width);
/* For sequences: [batch, channels, length]. */
typedef tr_pool2d_layer_options tr_pool1d_layer_options;
#define tr_max_pool1d_layer(...) tr_max_pool1d_layer_with(TR__NAMED_OPTIONS1(tr_pool1d_layer_options, kernel, __VA_ARGS__))
#define tr_avg_pool1d_layer(...) tr_avg_pool1d_layer_with(TR__NAMED_OPTIONS1(tr_pool1d_layer_options, kernel, __VA_ARGS__))
TR_API tr_module *tr_max_pool1d_layer_with(const tr_pool1d_layer_options *options);
TR_API tr_module *tr_avg_pool1d_layer_with(const tr_pool1d_layer_options *options);
TR_API tr_module *tr_adaptive_avg_pool1d_layer(int64_t length);
TR_API tr_module *tr_adaptive_max_pool1d_layer(int64_t length);

typedef struct tr_interpolate_layer_options {
    size_t size;
    const char *given;
    double scale;          /* the factor; 0: the sizes below instead */
    int64_t height, width; /* of the result */
    tr_interpolation mode;
    bool align_corners;
} tr_interpolate_layer_options;
/* tr_interpolate() as a module: tr_interpolate_layer(2, .mode = TR_INTERPOLATE_BILINEAR). */
#define tr_interpolate_layer(...) tr_interpolate_layer_with(TR__NAMED_OPTIONS1(tr_interpolate_layer_options, scale, __VA_ARGS__))
TR_API tr_module *tr_interpolate_layer_with(const tr_interpolate_layer_options *options);

typedef struct tr_batch_norm2d_options {
    size_t size;
    const char *given;
    int64_t channels;
    double eps;        /* default 1e-5 */
    double momentum;   /* default 0.1 */
    tr_dtype dtype;    /* of weight and bias; the running statistics are f32, or f64 */
    bool relu;         /* the result is max(0, norm + residual): cheaper than a ReLU module behind this one */
} tr_batch_norm2d_options;
/* tr_forward(norm, x), or tr_forward(norm, x, residual), which adds residual to the norm. In training mode it
 * normalizes by the batch's statistics, and updates the buffers running_mean, running_var and num_batches_tracked
 * (i64). After tr_eval() it normalizes by the buffers. */
#define tr_batch_norm2d(...) TR__NEW1(tr_batch_norm2d, channels, __VA_ARGS__)
TR_API tr_module *tr_batch_norm2d_with(const tr_batch_norm2d_options *options);
/* The same for [batch, channels] or sequences. */
typedef tr_batch_norm2d_options tr_batch_norm1d_options;
#define tr_batch_norm1d(...) TR__NEW1(tr_batch_norm1d, channels, __VA_ARGS__)
TR_API tr_module *tr_batch_norm1d_with(const tr_batch_norm1d_options *options);

/* [batch, …] -> [batch, the rest], in the order channels, height, width. */
TR_API tr_module *tr_flatten_layer(void);
/* tr_unflatten() as a module: tr_unflatten_layer(1, TR_SHAPE(8, 7, 7)). */
TR_API tr_module *tr_unflatten_layer(int dim, tr_shape shape);

/* Dropout as a module: active in training mode, with numbers from tr_seed() and the module's path; it fails without
 * tr_seed(). */
TR_API tr_module *tr_dropout_layer(double p);
/* A module without parameters from a function: tr_activation_layer(tr_gelu). */
TR_API tr_module *tr_activation_layer(tr_tensor *(*function)(tr_tensor *x));
TR_API tr_module *tr_relu_layer(void);
/* Functions with an argument, which ops.h explains. PyTorch's ReLU6 and Hardtanh are tr_clamp_layer(0, 6) and (-1, 1). */
TR_API tr_module *tr_leaky_relu_layer(double slope);
TR_API tr_module *tr_elu_layer(double alpha);
TR_API tr_module *tr_celu_layer(double alpha);
TR_API tr_module *tr_clamp_layer(double least, double most);
TR_API tr_module *tr_glu_layer(int dim);
TR_API tr_module *tr_softmax_layer(int dim);
TR_API tr_module *tr_log_softmax_layer(int dim);

typedef struct tr_prelu_options {
    size_t size;
    const char *given;
    int64_t channels;  /* of dimension 1, each with a weight of its own; default: one weight for all */
    double init;       /* default 0.25 */
    tr_dtype dtype;
} tr_prelu_options;
/* He et al. 2015: values below 0 are multiplied by a parameter weight, [1] or [channels]. */
#define tr_prelu(...) TR__NEW0(tr_prelu, __VA_ARGS__)
TR_API tr_module *tr_prelu_with(const tr_prelu_options *options);

/* Runs modules in turn. The children are named "0", "1", … */
#ifndef __cplusplus
#define tr_sequential(...) \
    tr_sequential_n((tr_module *[]){__VA_ARGS__}, (int)(sizeof((tr_module *[]){__VA_ARGS__}) / sizeof(tr_module *)))
#endif
TR_API tr_module *tr_sequential_n(tr_module *const *modules, int n);

/* ---- A user's own module ---------------------------------------------------------------------------------------- */

/* inputs: n tensors. Returns the output (in error when one of the inputs is). */
typedef tr_tensor *(*tr_forward_function)(tr_module *self, tr_tensor *const *inputs, int n);

/* A module with state_bytes of zeroed memory, freed with it; tr_module_state() is NULL for 0 bytes. Messages show name.
 * With a NULL forward it is a container. A replica of a module (tr_data_parallel()) has a copy of its state, in which
 * pointers to the module's parameters, buffers and children lead to the replica's; all other pointers are shared by
 * replicas that run at the same time. */
TR_API tr_module *tr_module_new(const char *name, size_t state_bytes, tr_forward_function forward);
/* The same with 1 to TR_MODULE_OUTPUTS outputs. forward sets them all; an output in error, or else a status that is not
 * TR_OK, is its failure. Wrappers other than tr_ddp() pass the first output on. */
#define TR_MODULE_OUTPUTS 8
typedef tr_status (*tr_forward_many_function)(tr_module *self, tr_tensor *const *inputs, int n, tr_tensor **outputs);
TR_API tr_module *tr_module_new_many(const char *name, size_t state_bytes, int outputs, tr_forward_many_function forward);
TR_API void *tr_module_state(const tr_module *module);
/* Sets the function that frees what the module's state holds, such as references of tr_keep() and memory. It runs once,
 * with the state, when the module's last reference is released. A replica's copy of the state holds nothing of its own. */
TR_API void tr_module_on_release(tr_module *module, void (*release)(void *state));
TR_API const char *tr_module_name(const tr_module *module);
/* Describes settings that the forward depends on and that neither name nor shapes show: tr_module_detail(m, "heads %d",
 * heads). Ranks that train together compare it (tr_trainer_new()). Numbers have a decimal point in any locale. A later call
 * replaces the text. */
TR_API void tr_module_detail(tr_module *module, const char *format, ...) TR_PRINTF(2, 3);
TR_API bool tr_module_training(const tr_module *module);
/* Adds a child, a parameter (a float leaf, which then requires a gradient) or a buffer under a name without dots, and
 * returns it. The module takes a reference. Adding an object in error puts the module in error; adding NULL does
 * nothing. A parameter that is added in several places is tied. A child named "" adds nothing to the paths. */
TR_API tr_module *tr_module_add(tr_module *parent, const char *name, tr_module *child);
/* The module at a path such as "h.0.attn", borrowed; NULL when the path leads to no module. */
TR_API tr_module *tr_module_find(tr_module *module, const char *path);
TR_API tr_tensor *tr_module_parameter(tr_module *module, const char *name, tr_tensor *parameter);
TR_API tr_tensor *tr_module_buffer(tr_module *module, const char *name, tr_tensor *buffer);
/* Objects in error with a message of the program's own: `return tr_tensor_fail(TR_SHAPE, "…", …)` in a forward, the
 * other where a module is made. */
TR_API tr_tensor *tr_tensor_fail(tr_status status, const char *format, ...) TR_PRINTF(2, 3);
TR_API tr_module *tr_module_fail(tr_status status, const char *format, ...) TR_PRINTF(2, 3);

#ifdef __cplusplus
} /* extern "C" */
template <class... T> inline tr_tensor *tr_forward(tr_module *module, T *...inputs)
{
    tr_tensor *list[] = {inputs...};
    return tr_forward_n(module, list, (int)sizeof...(inputs));
}
template <class... T> inline tr_module *tr_sequential(T *...modules)
{
    tr_module *list[] = {modules...};
    return tr_sequential_n(list, (int)sizeof...(modules));
}
#endif

#endif
