/*
 * Trireme, optimizers. An optimizer lays the parameters it gets, their gradients and its own state out in flat arenas
 * (unless they lie in one already) and updates them in one pass.
 */
#ifndef TRIREME_OPTIM_H
#define TRIREME_OPTIM_H

#include <trireme/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tr_optimizer tr_optimizer;

typedef struct tr_sgd_options {
    size_t size;
    tr_tensor_list *parameters;
    double lr;            /* 0: 1e-3 */
    double momentum;
    double dampening;
    double weight_decay;  /* added to the gradient */
    bool nesterov;
} tr_sgd_options;
/* As torch.optim.SGD: Sutskever et al. 2013. */
#define tr_sgd(...) TR__NEW1(tr_sgd, parameters, __VA_ARGS__)
TR_API tr_optimizer *tr_sgd_with(const tr_sgd_options *options);

typedef struct tr_adamw_options {
    size_t size;
    tr_tensor_list *parameters;
    double lr;            /* 0: 1e-3 */
    double beta1, beta2;  /* 0: 0.9, 0.999 */
    double eps;           /* 0: 1e-8 */
    double weight_decay;  /* 0: 0.01; TR_ZERO: none. Decoupled: Loshchilov & Hutter 2019 */
    bool decay_matrices_only; /* no decay of parameters with fewer than two dimensions (biases, norms) */
    bool amsgrad;         /* divides by the largest second moment so far: Reddi et al. 2018 */
} tr_adamw_options;
/* As torch.optim.AdamW. */
#define tr_adamw(...) TR__NEW1(tr_adamw, parameters, __VA_ARGS__)
TR_API tr_optimizer *tr_adamw_with(const tr_adamw_options *options);

typedef struct tr_adam_options {
    size_t size;
    tr_tensor_list *parameters;
    double lr;            /* 0: 1e-3 */
    double beta1, beta2;  /* 0: 0.9, 0.999 */
    double eps;           /* 0: 1e-8 */
    double weight_decay;  /* added to the gradient */
    bool amsgrad;         /* as AdamW's */
} tr_adam_options;
/* As torch.optim.Adam: Kingma & Ba 2015. */
#define tr_adam(...) TR__NEW1(tr_adam, parameters, __VA_ARGS__)
TR_API tr_optimizer *tr_adam_with(const tr_adam_options *options);

typedef struct tr_rmsprop_options {
    size_t size;
    tr_tensor_list *parameters;
    double lr;            /* 0: 1e-2 */
    double alpha;         /* 0: 0.99; TR_ZERO: none, the latest gradient alone */
    double eps;           /* 0: 1e-8 */
    double weight_decay;  /* added to the gradient */
    double momentum;
    bool centered;        /* divides by the gradients' deviation, not their size */
} tr_rmsprop_options;
/* As torch.optim.RMSprop: Tieleman & Hinton 2012. */
#define tr_rmsprop(...) TR__NEW1(tr_rmsprop, parameters, __VA_ARGS__)
TR_API tr_optimizer *tr_rmsprop_with(const tr_rmsprop_options *options);

typedef struct tr_adagrad_options {
    size_t size;
    tr_tensor_list *parameters;
    double lr;            /* 0: 1e-2 */
    double lr_decay;      /* the n-th step's lr is lr / (1 + (n - 1) lr_decay) */
    double weight_decay;  /* added to the gradient */
    double initial_accumulator; /* what the sums of squares begin with */
    double eps;           /* 0: 1e-10 */
} tr_adagrad_options;
/* As torch.optim.Adagrad: Duchi et al. 2011. */
#define tr_adagrad(...) TR__NEW1(tr_adagrad, parameters, __VA_ARGS__)
TR_API tr_optimizer *tr_adagrad_with(const tr_adagrad_options *options);

/* One update from the gradients that are there; a parameter without one stays as it is. */
TR_API TR_MUST_CHECK tr_status tr_step(tr_optimizer *optimizer);
/* Forgets all gradients: costs nothing, the next backward overwrites them. On an optimizer in error it does nothing:
 * tr_step() reports it. */
TR_API void tr_zero_grad(tr_optimizer *optimizer);
TR_API TR_MUST_CHECK tr_status tr_set_lr(tr_optimizer *optimizer, double lr);
TR_API double tr_lr(const tr_optimizer *optimizer);
/* Moments (the optimizer's own, not copies) and step counts by parameter name: "h.0.ln_1.weight.exp_avg". After the dot
 * stand PyTorch's names:
 *   Adam, AdamW   exp_avg, exp_avg_sq, with AMSGrad max_exp_avg_sq, step
 *   SGD           with momentum momentum_buffer, step, else nothing
 *   RMSprop       square_avg, when centered grad_avg, with momentum momentum_buffer, step
 *   Adagrad       sum, step
 * The learning rate is not among them. Loading is all or nothing, as in tr_load_state_dict(). */
TR_API tr_tensor_list *tr_optimizer_state(tr_optimizer *optimizer);
TR_API TR_MUST_CHECK tr_status tr_optimizer_load(tr_optimizer *optimizer, const tr_tensor_list *state);

/* Scales all gradients so that their joint 2-norm is at most max_norm (Pascanu et al. 2013). norm, when not NULL, gets
 * the norm from before. A norm that is not finite is an error, and changes nothing. */
TR_API TR_MUST_CHECK tr_status tr_clip_grad_norm(tr_optimizer *optimizer, double max_norm, double *norm);

/* The learning rate at a step: linear warm-up from lr/warmup_steps to lr, then a half cosine down to min_lr at steps,
 * min_lr after (Loshchilov & Hutter 2017). A pure function: resume needs no state. */
typedef struct tr_cosine_lr_options {
    size_t size;
    int64_t step;
    double lr;
    int64_t steps;
    int64_t warmup_steps;
    double min_lr;
} tr_cosine_lr_options;
#define tr_cosine_lr(...) TR__NEW3(tr_cosine_lr, step, lr, steps, __VA_ARGS__)
TR_API double tr_cosine_lr_with(const tr_cosine_lr_options *options);

/* lr gamma^(step / step_size), rounded down; NaN, which tr_set_lr() refuses, when step_size is less than 1. */
typedef struct tr_step_lr_options {
    size_t size;
    int64_t step;
    double lr;
    int64_t step_size;
    double gamma; /* 0: 0.1 */
} tr_step_lr_options;
#define tr_step_lr(...) TR__NEW3(tr_step_lr, step, lr, step_size, __VA_ARGS__)
TR_API double tr_step_lr_with(const tr_step_lr_options *options);

/* lr gamma^n, where n of the milestones are at step or before it. */
typedef struct tr_multi_step_lr_options {
    size_t size;
    int64_t step;
    double lr;
    const int64_t *milestones;
    int count;
    double gamma; /* 0: 0.1 */
} tr_multi_step_lr_options;
#define tr_multi_step_lr(...) TR__NEW3(tr_multi_step_lr, step, lr, milestones, __VA_ARGS__)
TR_API double tr_multi_step_lr_with(const tr_multi_step_lr_options *options);

/* lr gamma^step. */
TR_API double tr_exponential_lr(int64_t step, double lr, double gamma);

#ifdef __cplusplus
}
#endif

#endif
