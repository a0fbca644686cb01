/* Which rank, parameter and sample a step's odd gradients came from. */
#ifndef TR_TRAIN_GRADIENT_ORIGIN_H
#define TR_TRAIN_GRADIENT_ORIGIN_H

#include "train/trainer.h"

/* A summary of a rank's own gradients. All fields are doubles, as they are exchanged. */
typedef struct tr__origin {
    double loss;  /* its part of the batch's */
    double norm;  /* of its gradients; those of the other ranks taken to be the same */
    double first; /* the first parameter, in the optimizer's list, whose gradient backward made not finite; -1: none */
    double largest; /* the one with the gradient of the largest norm */
    double largest_norm;
    double spoilt; /* the first parameter that is not finite itself; -1: none */
    double sample; /* the first of the batch whose input is not finite; -1: none */
    double failed; /* 1: they could not be computed again, and the other fields are unknown */
} tr__origin;

/* Averaged gradients do not tell whose they were: computes those of the step's batch again, each rank for itself.
 * Parameters, buffers and step stay as they are; gradients too where keep is set, at the price of a copy of them.
 * origins: [world_size], the same on all ranks. Collective. */
tr_status tr__gradient_origins(tr_trainer *trainer, bool keep, tr__origin *origins);

#endif
