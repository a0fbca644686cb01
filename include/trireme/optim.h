/*
 * Trireme, optimizers. An optimizer places its parameters, their gradients and its own state in flat arenas (unless
 * they are in one already) and updates them in one pass.
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
    const char *given;
    tr_tensor_list *parameters;
    double lr;            /* default 1e-3 */
    double momentum;
    double dampening;
    double weight_decay;  /* added to the gradient */
    bool nesterov;
    bool bf16_state;      /* the momentum in bf16, rounded stochastically: half its memory (docs/optimizers.md) */
} tr_sgd_options;
/* As torch.optim.SGD: Sutskever et al. 2013. */
#define tr_sgd(...) TR__NEW1(tr_sgd, parameters, __VA_ARGS__)
TR_API tr_optimizer *tr_sgd_with(const tr_sgd_options *options);

typedef struct tr_adamw_options {
    size_t size;
    const char *given;
    tr_tensor_list *parameters;
    double lr;            /* default 1e-3 */
    double beta1, beta2;  /* default 0.9, 0.999 */
    double eps;           /* default 1e-8 */
    double weight_decay;  /* default 0.01. Decoupled: Loshchilov & Hutter 2019 */
    bool decay_matrices_only; /* no decay of parameters with fewer than two dimensions (biases, norms) */
    bool amsgrad;         /* divides by the largest second moment so far: Reddi et al. 2018 */
    bool bf16_state;      /* state in bf16, rounded stochastically: half the memory (docs/optimizers.md) */
} tr_adamw_options;
/* As torch.optim.AdamW. */
#define tr_adamw(...) TR__NEW1(tr_adamw, parameters, __VA_ARGS__)
TR_API tr_optimizer *tr_adamw_with(const tr_adamw_options *options);

typedef struct tr_adam_options {
    size_t size;
    const char *given;
    tr_tensor_list *parameters;
    double lr;            /* default 1e-3 */
    double beta1, beta2;  /* default 0.9, 0.999 */
    double eps;           /* default 1e-8 */
    double weight_decay;  /* added to the gradient */
    bool amsgrad;         /* as AdamW's */
    bool bf16_state;      /* as AdamW's */
} tr_adam_options;
/* As torch.optim.Adam: Kingma & Ba 2015. */
#define tr_adam(...) TR__NEW1(tr_adam, parameters, __VA_ARGS__)
TR_API tr_optimizer *tr_adam_with(const tr_adam_options *options);

typedef struct tr_rmsprop_options {
    size_t size;
    const char *given;
    tr_tensor_list *parameters;
    double lr;            /* default 1e-2 */
    double alpha;         /* default 0.99; 0: the latest gradient alone */
    double eps;           /* default 1e-8 */
    double weight_decay;  /* added to the gradient */
    double momentum;
    bool centered;        /* divides by the standard deviation of the gradients, not by their root mean square */
} tr_rmsprop_options;
/* As torch.optim.RMSprop: Tieleman & Hinton 2012. */
#define tr_rmsprop(...) TR__NEW1(tr_rmsprop, parameters, __VA_ARGS__)
TR_API tr_optimizer *tr_rmsprop_with(const tr_rmsprop_options *options);

typedef struct tr_adagrad_options {
    size_t size;
    const char *given;
    tr_tensor_list *parameters;
    double lr;            /* default 1e-2 */
    double lr_decay;      /* the n-th step's lr is lr / (1 + (n - 1) lr_decay) */
    double weight_decay;  /* added to the gradient */
    double initial_accumulator; /* the start value of the sums of squares */
    double eps;           /* default 1e-10 */
} tr_adagrad_options;
/* As torch.optim.Adagrad: Duchi et al. 2011. */
#define tr_adagrad(...) TR__NEW1(tr_adagrad, parameters, __VA_ARGS__)
TR_API tr_optimizer *tr_adagrad_with(const tr_adagrad_options *options);

typedef struct tr_adamax_options {
    size_t size;
    const char *given;
    tr_tensor_list *parameters;
    double lr;            /* default 2e-3 */
    double beta1, beta2;  /* default 0.9, 0.999 */
    double eps;           /* default 1e-8 */
    double weight_decay;  /* added to the gradient */
} tr_adamax_options;
/* As torch.optim.Adamax: Kingma & Ba 2015, section 7.1. */
#define tr_adamax(...) TR__NEW1(tr_adamax, parameters, __VA_ARGS__)
TR_API tr_optimizer *tr_adamax_with(const tr_adamax_options *options);

typedef struct tr_nadam_options {
    size_t size;
    const char *given;
    tr_tensor_list *parameters;
    double lr;             /* default 2e-3 */
    double beta1, beta2;   /* default 0.9, 0.999 */
    double eps;            /* default 1e-8 */
    double weight_decay;   /* added to the gradient */
    double momentum_decay; /* default 4e-3 */
    bool decoupled;        /* weight decay as AdamW's */
} tr_nadam_options;
/* As torch.optim.NAdam: Dozat 2016. */
#define tr_nadam(...) TR__NEW1(tr_nadam, parameters, __VA_ARGS__)
TR_API tr_optimizer *tr_nadam_with(const tr_nadam_options *options);

typedef struct tr_radam_options {
    size_t size;
    const char *given;
    tr_tensor_list *parameters;
    double lr;            /* default 1e-3 */
    double beta1, beta2;  /* default 0.9, 0.999 */
    double eps;           /* default 1e-8 */
    double weight_decay;  /* added to the gradient */
    bool decoupled;       /* weight decay as AdamW's */
} tr_radam_options;
/* As torch.optim.RAdam: Liu et al. 2020. */
#define tr_radam(...) TR__NEW1(tr_radam, parameters, __VA_ARGS__)
TR_API tr_optimizer *tr_radam_with(const tr_radam_options *options);

typedef struct tr_adadelta_options {
    size_t size;
    const char *given;
    tr_tensor_list *parameters;
    double lr;            /* default 1 */
    double rho;           /* default 0.9; 0: the latest gradient alone */
    double eps;           /* default 1e-6 */
    double weight_decay;  /* added to the gradient */
} tr_adadelta_options;
/* As torch.optim.Adadelta: Zeiler 2012. */
#define tr_adadelta(...) TR__NEW1(tr_adadelta, parameters, __VA_ARGS__)
TR_API tr_optimizer *tr_adadelta_with(const tr_adadelta_options *options);

typedef struct tr_rprop_options {
    size_t size;
    const char *given;
    tr_tensor_list *parameters;
    double lr;                 /* the size of the first step; not used later. Default 1e-2 */
    double decrease, increase; /* factors of the step size, where a gradient's sign changes and where it does not;
                                  default 0.5, 1.2 */
    double least, most;        /* limits of the step size; default 1e-6, 50 */
} tr_rprop_options;
/* As torch.optim.Rprop: Riedmiller & Braun 1993. It needs gradients over the whole data set. */
#define tr_rprop(...) TR__NEW1(tr_rprop, parameters, __VA_ARGS__)
TR_API tr_optimizer *tr_rprop_with(const tr_rprop_options *options);

typedef struct tr_lion_options {
    size_t size;
    const char *given;
    tr_tensor_list *parameters;
    double lr;            /* default 1e-4 */
    double beta1, beta2;  /* default 0.9, 0.99 */
    double weight_decay;  /* decoupled */
    bool bf16_state;      /* as AdamW's */
} tr_lion_options;
/* Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", algorithm 2. */
#define tr_lion(...) TR__NEW1(tr_lion, parameters, __VA_ARGS__)
TR_API tr_optimizer *tr_lion_with(const tr_lion_options *options);

/* LAMB, LARS and Muon need whole parameters: they cannot be sharded (tr_shard_optimizer). */
typedef struct tr_lamb_options {
    size_t size;
    const char *given;
    tr_tensor_list *parameters;
    double lr;            /* default 1e-3 */
    double beta1, beta2;  /* default 0.9, 0.999 */
    double eps;           /* default 1e-6 */
    double weight_decay;  /* default 0.01 */
    bool matrices_only;   /* parameters with fewer than two dimensions (biases, norms) have no decay and use lr itself */
} tr_lamb_options;
/* You et al. 2020, "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", algorithm 2. */
#define tr_lamb(...) TR__NEW1(tr_lamb, parameters, __VA_ARGS__)
TR_API tr_optimizer *tr_lamb_with(const tr_lamb_options *options);

typedef struct tr_lars_options {
    size_t size;
    const char *given;
    tr_tensor_list *parameters;
    double lr;            /* default 0.1 */
    double momentum;      /* default 0.9 */
    double weight_decay;
    double trust;         /* default 1e-3 */
    bool matrices_only;   /* as LAMB's */
} tr_lars_options;
/* You et al. 2017, "Large Batch Training of Convolutional Networks", algorithm 1. */
#define tr_lars(...) TR__NEW1(tr_lars, parameters, __VA_ARGS__)
TR_API tr_optimizer *tr_lars_with(const tr_lars_options *options);

typedef struct tr_muon_options {
    size_t size;
    const char *given;
    tr_tensor_list *parameters; /* matrices: of two dimensions */
    double lr;            /* default 1e-3 */
    double momentum;      /* default 0.95 */
    double weight_decay;  /* default 0.1. Decoupled */
    double eps;           /* default 1e-7 */
    int iterations;       /* Newton-Schulz iterations; default 5 */
    bool plain;           /* ordinary momentum, not Nesterov's */
    bool match_adamw;     /* scales steps to the size of AdamW's, so that AdamW's lr and weight_decay fit: Liu et al.
                             2025 */
} tr_muon_options;
/* As torch.optim.Muon: Jordan et al. 2024. For the matrices in the middle of a net; give embeddings, biases and norms
 * to another optimizer. */
#define tr_muon(...) TR__NEW1(tr_muon, parameters, __VA_ARGS__)
TR_API tr_optimizer *tr_muon_with(const tr_muon_options *options);

typedef struct tr_param_group_options {
    size_t size;
    const char *given;
    tr_optimizer *optimizer;
    const tr_tensor_list *parameters; /* some of the optimizer's parameters; names do not matter */
    double lr_scale;      /* their learning rate is lr_scale times the optimizer's, also after tr_set_lr(). 0: they
                             change only by momentum that they have. Not given: unchanged, at first 1 */
    double weight_decay;  /* not given: unchanged */
} tr_param_group_options;
/* Gives some parameters their own learning rate and weight decay from the next step on, as PyTorch's parameter groups.
 * Groups may overlap: of each value the latest one counts. */
#define tr_param_group(...) TR__NEW2(tr_param_group, optimizer, parameters, __VA_ARGS__)
TR_API TR_MUST_CHECK tr_status tr_param_group_with(const tr_param_group_options *options);

/* tr_step(optimizer): one update from the current gradients; a parameter without a gradient stays as it is. When a loop
 * seems to lack its TR_SCOPE, the log gets one warning with its place: after 100 steps in one scope that holds more
 * objects at each step, and 64 MiB more. */
#define tr_step(optimizer) tr_step_at((optimizer), TR__FILE, TR__LINE)
TR_API TR_MUST_CHECK tr_status tr_step_at(tr_optimizer *optimizer, const char *file, int line);
/*
 * Steps in backward: from now on tr_backward() updates each parameter as soon as its gradient is final, its hooks have
 * seen it, and nothing in the graph still has to read the parameter. Then it frees the gradient (Lv et al. 2023). So no
 * memory is needed for all gradients, four bytes per f32 parameter. The results are those of a step after backward, bit
 * for bit. The loop stays as it is, except that tr_set_lr() comes before the backward. tr_step() then only ends the
 * step, and tr_zero_grad() has nothing to do.
 *
 * For a module that was in tr_ddp() before this was switched on, on the CPU, gradients are averaged first. The
 * parameters of a bucket are updated when all ranks have sent it, in the same order on all ranks, and the bucket's
 * memory goes to the next one. All ranks must switch it alike.
 *
 * Only one backward per step: another one before tr_step() is refused, because its gradients could not be added. Also
 * refused are clipping, gradient scaling, tr_shard_optimizer(), distributed backwards, and parameters that belong to
 * several optimizers or tr_ddp()s. tr_grad() of a parameter is a tensor in error.
 *
 * When a backward fails after it has updated parameters, its message says so, and so does the next tr_step(). Each
 * parameter is then as it was, or one step on. The weight of a linear layer that takes 64 MiB or more may be one step
 * on in its first rows only, because its gradient is computed and applied in blocks of rows. Switched off, the
 * optimizer steps in tr_step() again.
 */
TR_API TR_MUST_CHECK tr_status tr_step_in_backward(tr_optimizer *optimizer, bool on);
/* Drops all gradients. This costs nothing: the next backward overwrites them. On an optimizer in error it does nothing;
 * tr_step() reports the error. */
TR_API void tr_zero_grad(tr_optimizer *optimizer);
TR_API TR_MUST_CHECK tr_status tr_set_lr(tr_optimizer *optimizer, double lr);
TR_API double tr_lr(const tr_optimizer *optimizer);
/* tr_optimizer_state(optimizer): moments (the optimizer's own tensors, not copies) and step counts, by parameter name:
 * "h.0.ln_1.weight.exp_avg". PyTorch's names follow the dot:
 *   Adam, AdamW   exp_avg, exp_avg_sq, with AMSGrad max_exp_avg_sq, step
 *   SGD           with momentum momentum_buffer, step, else nothing
 *   RMSprop       square_avg, when centered grad_avg, with momentum momentum_buffer, step
 *   Adagrad       sum, step
 *   Adamax        exp_avg, exp_inf, step
 *   NAdam, RAdam, LAMB   exp_avg, exp_avg_sq, step (NAdam's mu_product is a function of step)
 *   Adadelta      square_avg, acc_delta, step
 *   Rprop         prev, step_size, step
 *   Lion          exp_avg, step
 *   LARS, Muon    momentum_buffer, step
 * The learning rate is not part of it. tr_optimizer_load(optimizer, state) loads all or nothing, as tr_load_state_dict(). */
#define tr_optimizer_state(optimizer) tr_optimizer_state_at((optimizer), TR__FILE, TR__LINE)
#define tr_optimizer_load(optimizer, state) tr_optimizer_load_at((optimizer), (state), TR__FILE, TR__LINE)
TR_API tr_tensor_list *tr_optimizer_state_at(tr_optimizer *optimizer, const char *file, int line);
TR_API TR_MUST_CHECK tr_status tr_optimizer_load_at(tr_optimizer *optimizer, const tr_tensor_list *state, const char *file,
    int line);

/* tr_clip_grad_norm(optimizer, max_norm, &norm): scales all gradients so that their joint 2-norm is at most max_norm
 * (Pascanu et al. 2013). norm, when not NULL, gets the norm before scaling. A norm that is not finite is an error and
 * changes nothing. Where this rank has shards of parameters (tensor parallelism) or one stage of a pipeline, it is the
 * norm of the whole model: the ranks with the other parts must call it, too, and all scale by the same factor. If one of
 * them fails, for example because its max_norm is 0, the others get TR_PEER with its message. */
#define tr_clip_grad_norm(optimizer, max_norm, norm) \
    tr_clip_grad_norm_at((optimizer), (max_norm), (norm), TR__FILE, TR__LINE)
TR_API TR_MUST_CHECK tr_status tr_clip_grad_norm_at(tr_optimizer *optimizer, double max_norm, double *norm, const char *file,
    int line);

/*
 * Gradient scaling (Micikevicius et al. 2018), as torch.amp.GradScaler: for f16, where small gradients would become 0.
 * The loss is multiplied by a scale before backward, and the gradients are divided by it before the step. A step whose
 * gradients are not finite is left out and makes the scale smaller. Many steps in a row with finite gradients make it
 * larger. Ranks with the same gradients (DDP) decide alike. So do ranks that have shards of parameters or stages of a
 * pipeline: for them dividing the gradients is collective.
 *
 *     TR_CHECK(tr_backward(tr_scale_loss(scaler, loss)));
 *     TR_CHECK(tr_scaled_step(scaler, opt));
 *     tr_update_scale(scaler);
 */
typedef struct tr_grad_scaler tr_grad_scaler; /* an object */
typedef struct tr_grad_scaler_options {
    size_t size;
    const char *given;
    double scale;     /* the initial scale; default 65536 */
    double growth;    /* default 2 */
    double backoff;   /* default 0.5 */
    int64_t interval; /* finite steps in a row before the scale grows; default 2000 */
} tr_grad_scaler_options;
#define tr_grad_scaler_new(...) tr_grad_scaler_new_with(TR__NAMED_OPTIONS0(tr_grad_scaler_options, __VA_ARGS__))
TR_API tr_grad_scaler *tr_grad_scaler_new_with(const tr_grad_scaler_options *options);
/* loss times the scale, in f32 or f64. */
TR_API tr_tensor *tr_scale_loss(tr_grad_scaler *scaler, tr_tensor *loss);
/* tr_unscale_grad(scaler, optimizer, &finite): divides the optimizer's gradients by the scale, so that the program can
 * clip or look at them before the step; once between two tr_update_scale(). finite, when not NULL, says whether all
 * gradients are finite; if not, the step will be left out. */
#define tr_unscale_grad(scaler, optimizer, finite) tr_unscale_grad_at((scaler), (optimizer), (finite), TR__FILE, TR__LINE)
TR_API TR_MUST_CHECK tr_status tr_unscale_grad_at(tr_grad_scaler *scaler, tr_optimizer *optimizer, bool *finite,
    const char *file, int line);
/* tr_scaled_step(scaler, optimizer): divides the gradients unless that is done, and steps unless a gradient is not
 * finite; once between two tr_update_scale(). */
#define tr_scaled_step(scaler, optimizer) tr_scaled_step_at((scaler), (optimizer), TR__FILE, TR__LINE)
TR_API TR_MUST_CHECK tr_status tr_scaled_step_at(tr_grad_scaler *scaler, tr_optimizer *optimizer, const char *file, int line);
/* Call it after the steps of all optimizers. Returns whether all steps were made. */
TR_API bool tr_update_scale(tr_grad_scaler *scaler);
TR_API double tr_grad_scale(const tr_grad_scaler *scaler);
/* "scale" and "growth_tracker", copies, for a checkpoint. */
TR_API tr_tensor_list *tr_grad_scaler_state(const tr_grad_scaler *scaler);
TR_API TR_MUST_CHECK tr_status tr_grad_scaler_load(tr_grad_scaler *scaler, const tr_tensor_list *state);

/* The learning rate at a step: linear warm-up from lr/warmup_steps to lr, then a half cosine down to min_lr at steps,
 * min_lr after (Loshchilov & Hutter 2017). A pure function: resume needs no state. */
typedef struct tr_cosine_lr_options {
    size_t size;
    const char *given;
    int64_t step;
    double lr;
    int64_t steps;
    int64_t warmup_steps;
    double min_lr;
} tr_cosine_lr_options;
#define tr_cosine_lr(...) TR__NEW3(tr_cosine_lr, step, lr, steps, __VA_ARGS__)
TR_API double tr_cosine_lr_with(const tr_cosine_lr_options *options);

/* lr gamma^n, where n is step / step_size, rounded down. NaN, which tr_set_lr() refuses, when step_size is less than 1. */
typedef struct tr_step_lr_options {
    size_t size;
    const char *given;
    int64_t step;
    double lr;
    int64_t step_size;
    double gamma; /* default 0.1 */
} tr_step_lr_options;
#define tr_step_lr(...) TR__NEW3(tr_step_lr, step, lr, step_size, __VA_ARGS__)
TR_API double tr_step_lr_with(const tr_step_lr_options *options);

/* lr gamma^n, where n is the number of milestones at or before step: tr_multi_step_lr(step, 0.1, (int64_t[]){30, 60},
 * .count = 2). NaN, which tr_set_lr() refuses, without a .count. */
typedef struct tr_multi_step_lr_options {
    size_t size;
    const char *given;
    int64_t step;
    double lr;
    const int64_t *milestones;
    int count;
    double gamma; /* default 0.1 */
} tr_multi_step_lr_options;
#define tr_multi_step_lr(...) \
    tr_multi_step_lr_with(TR__BRACES3(tr_multi_step_lr_options, step, lr, milestones, __VA_ARGS__))
TR_API double tr_multi_step_lr_with(const tr_multi_step_lr_options *options);

/* lr gamma^step. */
TR_API double tr_exponential_lr(int64_t step, double lr, double gamma);

/* lr/steps, 2 lr/steps, … up to lr at steps - 1, lr from there on. */
TR_API double tr_warmup_lr(int64_t step, double lr, int64_t steps);

/* lr times a factor that changes linearly from `from` at step 0 to `to` at steps, and then stays: torch's LinearLR. */
typedef struct tr_linear_lr_options {
    size_t size;
    const char *given;
    int64_t step;
    double lr;
    int64_t steps;
    double from, to; /* default 1/3, 1 */
} tr_linear_lr_options;
#define tr_linear_lr(...) TR__NEW3(tr_linear_lr, step, lr, steps, __VA_ARGS__)
TR_API double tr_linear_lr_with(const tr_linear_lr_options *options);

/* lr (1 - step/steps)^power, 0 from steps on: torch's PolynomialLR. */
typedef struct tr_polynomial_lr_options {
    size_t size;
    const char *given;
    int64_t step;
    double lr;
    int64_t steps;
    double power; /* default 1 */
} tr_polynomial_lr_options;
#define tr_polynomial_lr(...) TR__NEW3(tr_polynomial_lr, step, lr, steps, __VA_ARGS__)
TR_API double tr_polynomial_lr_with(const tr_polynomial_lr_options *options);

/* Up from lr/divide to lr, and down to lr/divide/final_divide at steps - 1, in half cosines (Smith & Topin 2018): torch's
 * OneCycleLR, without its cycle of the momentum. NaN, which tr_set_lr() refuses, when rise is not in [0, 1] or a divisor is 0. */
typedef struct tr_one_cycle_lr_options {
    size_t size;
    const char *given;
    int64_t step;
    double lr;           /* the largest */
    int64_t steps;
    double rise;         /* the fraction of the steps that goes up; default 0.3 */
    double divide;       /* default 25 */
    double final_divide; /* default 1e4 */
    bool linear;         /* in straight lines */
    bool three_phase;    /* down to lr/divide in as many steps as up, then on to the end */
} tr_one_cycle_lr_options;
#define tr_one_cycle_lr(...) TR__NEW3(tr_one_cycle_lr, step, lr, steps, __VA_ARGS__)
TR_API double tr_one_cycle_lr_with(const tr_one_cycle_lr_options *options);

/* One schedule after the other, each of which counts its steps from 0: torch's SequentialLR. */
typedef struct tr_lr_phase {
    int64_t steps;                          /* its number of steps; the last phase goes on after them */
    double (*lr)(int64_t step, void *user);
    void *user;
} tr_lr_phase;
/* NaN without phases. */
TR_API double tr_sequential_lr(int64_t step, const tr_lr_phase *phases, int count);

/* The state of a plateau schedule: zeros at first. A program that stops and resumes must save and restore it. */
typedef struct tr_plateau {
    double lr, best;
    int64_t bad, rest; /* measurements since the best one; measurements still to be ignored after a reduction */
    bool begun;
} tr_plateau;
/* Takes a measurement. When more than `patience` measurements in a row were not better than the best, it multiplies the
 * learning rate by factor, unless that changes it by 1e-8 or less: torch's ReduceLROnPlateau. NaN is never better.
 * Returns the learning rate to go on with. */
typedef struct tr_plateau_lr_options {
    size_t size;
    const char *given;
    tr_plateau *state;
    double metric;
    double lr;         /* where it starts */
    double factor;     /* default 0.1 */
    int64_t patience;  /* default 10; a binding that fills in the struct asks for none by -1 */
    double threshold;  /* better means: by more than this fraction of the best; default 1e-4 */
    bool absolute;     /* better means: by more than the threshold itself */
    bool maximize;     /* larger metrics are better */
    int64_t cooldown;  /* measurements after a reduction that are ignored */
    double min_lr;
} tr_plateau_lr_options;
#define tr_plateau_lr(...) TR__NEW3(tr_plateau_lr, state, metric, lr, __VA_ARGS__)
TR_API double tr_plateau_lr_with(const tr_plateau_lr_options *options);

#ifdef __cplusplus
}
#endif

#endif
