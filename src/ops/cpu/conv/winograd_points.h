/*
 * The transforms between tiles and Winograd's points. With polynomials of the pixels d, the taps g and the outputs y in one dimension,
 * at the points 0, ±3/4, ±3/2 and infinity,
 *
 *   y = A^T [ (G g) (B^T d) ]      B^T: [6, 6], G: [6, 3], A^T: [4, 6] (Lavin and Gray, 2015)
 *
 * and in two dimensions each matrix is applied along columns, then along rows. The gradients are the transposes: A dy meets
 * B^T d, and G^T turns their product into taps. These points give half the error of the usual 0, ±1, ±2: about that of
 * summing up directly. Each function applies its matrix to vectors of channels. Included by files that are compiled once
 * per kind of machine, so everything is static.
 */
#ifndef TR_OPS_CPU_CONV_WINOGRAD_POINTS_H
#define TR_OPS_CPU_CONV_WINOGRAD_POINTS_H

#include "ops/cpu/simd/lanes.h"

enum { TAPS = 3, PLACES = 4, POINTS = TAPS + PLACES - 1 }; /* along one dimension */

/* The two pairs of points, their squares, and what G divides by. */
#define NEAR 0.75f
#define FAR 1.5f
#define NEAR2 (NEAR * NEAR)
#define FAR2 (FAR * FAR)
#define G_ZERO (1 / (NEAR2 * FAR2))
#define G_NEAR (1 / (2 * NEAR2 * (NEAR2 - FAR2)))
#define G_FAR (1 / (2 * FAR2 * (FAR2 - NEAR2)))

/* Polynomials at the two pairs of points, from their even and odd parts there. */
LANES_INLINE void at_pairs(vec even_near, vec odd_near, vec even_far, vec odd_far, vec *to)
{
    to[1] = even_near + odd_near;
    to[2] = even_near - odd_near;
    to[3] = even_far + odd_far;
    to[4] = even_far - odd_far;
}

/* B^T d */
LANES_INLINE void pixels_at_points(const vec *d, vec *to)
{
    vec even_near = d[4] - d[2] * FAR2, odd_near = (d[3] - d[1] * FAR2) * NEAR;
    vec even_far = d[4] - d[2] * NEAR2, odd_far = (d[3] - d[1] * NEAR2) * FAR;
    to[0] = d[4] - d[2] * (NEAR2 + FAR2) + d[0] * (NEAR2 * FAR2);
    at_pairs(even_near, odd_near, even_far, odd_far, to);
    to[5] = d[5] - d[3] * (NEAR2 + FAR2) + d[1] * (NEAR2 * FAR2);
}

/* G g */
LANES_INLINE void taps_at_points(const vec *g, vec *to)
{
    vec even_near = (g[0] + g[2] * NEAR2) * G_NEAR, odd_near = g[1] * (NEAR * G_NEAR);
    vec even_far = (g[0] + g[2] * FAR2) * G_FAR, odd_far = g[1] * (FAR * G_FAR);
    to[0] = g[0] * G_ZERO;
    at_pairs(even_near, odd_near, even_far, odd_far, to);
    to[5] = g[2];
}

/* A^T m */
LANES_INLINE void points_to_outputs(const vec *m, vec *to)
{
    vec even_near = m[1] + m[2], odd_near = (m[1] - m[2]) * NEAR, even_far = m[3] + m[4], odd_far = (m[3] - m[4]) * FAR;
    to[0] = m[0] + even_near + even_far;
    to[1] = odd_near + odd_far;
    to[2] = even_near * NEAR2 + even_far * FAR2;
    to[3] = odd_near * NEAR2 + odd_far * FAR2 + m[5];
}

/* A dy */
LANES_INLINE void outputs_at_points(const vec *dy, vec *to)
{
    vec even_near = dy[0] + dy[2] * NEAR2, odd_near = (dy[1] + dy[3] * NEAR2) * NEAR;
    vec even_far = dy[0] + dy[2] * FAR2, odd_far = (dy[1] + dy[3] * FAR2) * FAR;
    to[0] = dy[0];
    at_pairs(even_near, odd_near, even_far, odd_far, to);
    to[5] = dy[3];
}

/* G^T u */
LANES_INLINE void points_to_taps(const vec *u, vec *to)
{
    vec even_near = (u[1] + u[2]) * G_NEAR, odd_near = (u[1] - u[2]) * (NEAR * G_NEAR);
    vec even_far = (u[3] + u[4]) * G_FAR, odd_far = (u[3] - u[4]) * (FAR * G_FAR);
    to[0] = u[0] * G_ZERO + even_near + even_far;
    to[1] = odd_near + odd_far;
    to[2] = even_near * NEAR2 + even_far * FAR2 + u[5];
}

typedef void (*along_one)(const vec *from, vec *to);

/* Applies it along the rows, then along the columns: size x size vectors become made x made, `added` to each. from and to are
 * the places of a tile's pixels or points, read and written from_at and to_at numbers further on. */
LANES_INLINE void along_both(along_one apply, int size, int made, tr_dtype from_dtype, void *const *from, int64_t from_at,
    tr_dtype to_dtype, void *const *to, int64_t to_at, vec added)
{
    vec rows[POINTS * POINTS];
    for (int i = 0; i < size; i++) {
        vec row[POINTS];
#pragma GCC unroll 6
        for (int j = 0; j < size; j++) row[j] = lanes_load(from_dtype, from[i * size + j], from_at, WIDTH);
        apply(row, rows + i * made);
    }
    for (int j = 0; j < made; j++) {
        vec column[POINTS], out[POINTS];
#pragma GCC unroll 6
        for (int i = 0; i < size; i++) column[i] = rows[i * made + j];
        apply(column, out);
#pragma GCC unroll 6
        for (int i = 0; i < made; i++) lanes_store(to_dtype, to[i * made + j], to_at, WIDTH, out[i] + added);
    }
}

#endif
