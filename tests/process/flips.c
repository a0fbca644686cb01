/*
 * flips FOLDER RANK STEP [roll-back]: trains a small net into FOLDER, as the ranks of a job. A bit of RANK's weights
 * flips after STEP (0: never). At the end rank 0 says a checksum of its weights, and how often the training went back.
 */
#include <trireme/trireme.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct flip {
    tr_module *net;
    int64_t step; /* 0: never, or no more */
} flip;

static void on_step(const tr_metrics_row *row, void *user)
{
    flip *f = user;
    if (row->step != f->step) return;
    f->step = 0;
    TR_SCOPE;
    ((unsigned char *)tr_data(tr_list_find(tr_state_dict(f->net), "2.weight")))[30] ^= 0x20;
}

static void print_message(tr_log_level level, const char *message, void *user)
{
    (void)level, (void)user;
    printf("warning: %s\n", message);
}

static uint64_t hash_of(const tr_tensor_list *list)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (int i = 0; i < tr_list_count(list); i++) {
        tr_tensor *t = tr_list_at(list, i);
        const unsigned char *data = tr_data(t);
        size_t bytes = (size_t)tr_numel(t) * tr_dtype_size(tr_dtype_of(t));
        for (size_t b = 0; b < bytes; b++) hash = (hash ^ data[b]) * 0x100000001b3u;
    }
    return hash;
}

int main(int argc, char **argv)
{
    if (argc < 4) return 2;
    TR_SCOPE;
    tr_group *world = tr_join();
    TR_CHECK(tr_status_of(world));
    tr_set_log(print_message, NULL, TR_LOG_WARN);

    int32_t classes[120];
    for (int i = 0; i < 120; i++) classes[i] = i * 5 % 4;
    tr_dataset *set =
        tr_dataset_tensors(tr_randn(3, TR_SHAPE(120, 16)), tr_from(classes, TR_SHAPE(120), .dtype = TR_I32));
    tr_module *net = tr_sequential(tr_linear(16, 24, .seed = 1), tr_relu_layer(), tr_linear(24, 4, .seed = 2));
    tr_trainer *trainer =
        tr_classifier_trainer(net, set, .group = world, .global_batch = 12, .steps = 30, .check_replicas = 5);
    flip f = {net, tr_rank(world) == atoi(argv[2]) ? atoi(argv[3]) : 0};
    tr_fit_report report;
    TR_CHECK(tr_fit(trainer, .folder = tr_rank(world) ? NULL : argv[1], .save_every = 10, .on_step = on_step,
                    .user = &f, .roll_back = argc > 4 && strcmp(argv[4], "roll-back") == 0, .report = &report));
    if (tr_rank(world) == 0)
        printf("weights %016" PRIx64 ", went back %" PRId64 " times\n", hash_of(tr_state_dict(net)),
               report.rolled_back);
    TR_CHECK(tr_leave(world));
    return 0;
}
