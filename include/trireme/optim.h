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
} tr_adamw_options;
#define tr_adamw(...) TR__NEW1(tr_adamw, parameters, __VA_ARGS__)
TR_API tr_optimizer *tr_adamw_with(const tr_adamw_options *options);

/* One update from the gradients that are there; a parameter without one stays as it is. */
TR_API TR_MUST_CHECK tr_status tr_step(tr_optimizer *optimizer);
/* Forgets all gradients: costs nothing, the next backward overwrites them. On an optimizer in error it does nothing:
 * tr_step() reports it. */
TR_API void tr_zero_grad(tr_optimizer *optimizer);
TR_API TR_MUST_CHECK tr_status tr_set_lr(tr_optimizer *optimizer, double lr);
TR_API double tr_lr(const tr_optimizer *optimizer);
/* Moments (the optimizer's own, not copies) and step counts by parameter name: "h.0.ln_1.weight.exp_avg",
 * "….exp_avg_sq" and "….step" (AdamW), "….momentum_buffer" and "….step" (SGD with momentum). The learning rate is not
 * among them. Loading is all or nothing, as in tr_load_state_dict(). */
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

#ifdef __cplusplus
}
#endif

#endif
