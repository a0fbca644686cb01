/*
 * trireme bench groups: what a group within a group costs. All ranks of the world split it again and again into one group of all,
 * sum a number on each, and keep the groups; beside the times stand the descriptors and threads that a rank has with one and with
 * all of them.
 */
#include "bench.h"
#include "bench_result.h"

#include "clock.h"
#include "options.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct groups {
    int count;
    const char *json, *transport;
    double *split_us, *first_us; /* [count]: of each split, and of the first all_reduce on what it made */
    int fds[2], threads[2];      /* of this rank, with one group and with all */
} groups;

static int entries(const char *path)
{
    int count = 0;
    DIR *folder = opendir(path);
    while (folder && readdir(folder)) count++;
    if (folder) closedir(folder);
    return count - 2; /* "." and ".." */
}

static void count_resources(groups *g, int which)
{
    g->fds[which] = entries("/proc/self/fd") - 1; /* the folder's own */
    g->threads[which] = entries("/proc/self/task");
}

/* Ranks enter a split together; its time is this rank's. */
static tr_status make_all(groups *g, tr_group *world)
{
    tr_status status = TR_OK;
    for (int i = 0; i < g->count && status == TR_OK; i++) {
        int64_t one = 1;
        status = tr_barrier(world);
        if (status != TR_OK) break;
        double began = tr__now_us();
        tr_group *made = tr_group_split(world, 0, tr_rank(world));
        double split = tr__now_us();
        status = tr_all_reduce(made, &one, 1, .dtype = TR_I64);
        g->split_us[i] = split - began;
        g->first_us[i] = tr__now_us() - split;
        if (i == 0) count_resources(g, 0);
    }
    count_resources(g, 1);
    return status;
}

/* The rank with the most. */
static tr_status agree(groups *g, tr_group *world)
{
    int32_t most[4] = {g->fds[0], g->fds[1], g->threads[0], g->threads[1]};
    tr_status status = tr_all_reduce(world, most, 4, .dtype = TR_I32, .op = TR_MAX);
    for (int i = 0; i < 2; i++) {
        g->fds[i] = most[i];
        g->threads[i] = most[2 + i];
    }
    return status;
}

static int report(const groups *g, int ranks)
{
    double split = tr__median(g->split_us, g->count), first = tr__median(g->first_us, g->count);
    printf("%d groups of %d ranks within a group, medians of rank 0, and the rank that has most\n", g->count, ranks);
    printf("  %-28s %8.1f us\n  %-28s %8.1f us\n", "split", split, "its first all_reduce", first);
    printf("  %-28s %8d with 1, %d with %d\n", "descriptors", g->fds[0], g->fds[1], g->count);
    printf("  %-28s %8d with 1, %d with %d\n", "threads", g->threads[0], g->threads[1], g->count);
    cJSON *o = tr__result_new(NULL, "groups/%d", ranks);
    TR__ADD_NUMBERS(o, {"ranks", ranks}, {"groups", g->count}, {"split_us_median", split}, {"all_reduce_us_median", first},
        {"fds_per_rank_with_1", g->fds[0]}, {"fds_per_rank", g->fds[1]}, {"threads_per_rank_with_1", g->threads[0]},
        {"threads_per_rank", g->threads[1]});
    return tr__write_json(TR__BENCH, o, g->json);
}

static int groups_rank(groups *g)
{
    TR_SCOPE;
    tr_group *world = tr_join(.transport = g->transport);
    tr_status status = make_all(g, world);
    if (status == TR_OK) status = agree(g, world);
    if (status != TR_OK) return tr__bench_failed(status);
    int code = tr_rank(world) == 0 ? report(g, tr_world_size(world)) : TR__EXIT_OK;
    return tr_leave(world) == TR_OK ? code : TR_EXIT_PEER;
}

static int measure(void *self)
{
    groups *g = self;
    g->split_us = calloc(2 * (size_t)g->count, sizeof *g->split_us);
    if (!g->split_us) return tr__complain(TR__BENCH, "no memory for %d groups", g->count);
    g->first_us = g->split_us + g->count;
    int code = groups_rank(g);
    free(g->split_us);
    return code;
}

int tr__bench_groups(int argc, char **argv)
{
    int ranks = 8;
    groups g = {.count = 100};
    const tr__option options[] = {
        {"ranks", 'n', "N", "processes", TR__INTEGER(&ranks, 2, TR_LAUNCH_MAX_RANKS)},
        {"groups", 0, "N", "groups to make", TR__INTEGER(&g.count, 1, 10000)},
        {"transport", 0, "NAME", "\"tcp\": as between hosts", TR__TEXT(&g.transport)},
        {"json", 0, "FILE", "write the results as a JSON object", TR__OUTPUT(&g.json)},
        {0},
    };
    const tr__syntax syntax = {"bench groups", NULL,
        "Times how long the ranks of a group take to become another one, and counts what that takes.", options,
        .operands = {0, 0}};
    return tr__bench_run(&(tr__bench_job){&syntax, &ranks, NULL, measure, &g}, argc, argv);
}
