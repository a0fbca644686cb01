#include "comm/algo/hosts.h"

#include "base/object.h"

#include <stdlib.h>

/* Of hosts that have been seen, `ranks` holds the first rank for the time being. */
static int host_of(tr__hosts *h, int rank, bool (*together)(const void *, int, int), const void *arg)
{
    int host = 0;
    while (host < h->count && !together(arg, h->ranks[host], rank)) host++;
    if (host == h->count) h->ranks[h->count++] = rank;
    return host;
}

static void put_in_order(tr__hosts *h)
{
    h->least = h->world_size;
    for (int host = 0; host < h->count; host++) {
        int size = h->first[host + 1];
        if (size < h->least) h->least = size;
        if (size > h->most) h->most = size;
        h->first[host + 1] += h->first[host];
    }
    for (int rank = 0; rank < h->world_size; rank++) h->ranks[h->first[h->host[rank]] + h->place[rank]] = rank;
}

tr_status tr__hosts_make(tr__hosts *h, int world_size, bool (*together)(const void *arg, int a, int b), const void *arg)
{
    size_t world = (size_t)world_size;
    int *room = calloc(4 * world + 1, sizeof *room);
    if (!room) return tr__fail(TR_NO_MEMORY, "no memory for the hosts of %d ranks", world_size);
    *h = (tr__hosts){.world_size = world_size, .host = room, .place = room + world, .ranks = room + 2 * world,
        .first = room + 3 * world};
    for (int rank = 0; rank < world_size; rank++) {
        h->host[rank] = host_of(h, rank, together, arg);
        h->place[rank] = h->first[h->host[rank] + 1]++;
    }
    put_in_order(h);
    return TR_OK;
}

void tr__hosts_free(tr__hosts *h)
{
    free(h->host); /* all four */
    *h = (tr__hosts){0};
}
