/* The images that `trireme train` learns from: MNIST's and CIFAR-10's files, or folders, as a model wants them. */
#ifndef TRIREME_CLI_TRAIN_IMAGE_DATA_H
#define TRIREME_CLI_TRAIN_IMAGE_DATA_H

#include <trireme/trireme.h>

/* How a image is made ready. A dataset points to it: it stays where it is. */
typedef struct tr__preparation {
    int channels, size;           /* [channels, size, size] comes out */
    float mean[3], deviation[3];  /* of each channel's values, 0 … 1 */
    bool shift, mirror;           /* at random, a little; every second one */
} tr__preparation;

typedef struct tr__image_data {
    const char *kind;             /* "MNIST", "CIFAR-10", "images" */
    tr_dataset *training, *validation; /* of the innermost scope; x as made ready, y: the class */
    int64_t classes;
    tr__preparation preparations[2]; /* of training and validation */
} tr__image_data;

typedef struct tr__image_request {
    const char *folder;
    int channels;     /* 1: grey; 3; 0: what the images have */
    int size;         /* 0: the images' own, at least 32; 224 for a folder */
    int max_pixels;   /* of an image in a folder */
    double validation; /* the share that is held back where there is no set for it */
    const char *augment; /* "none", "shift", "mirror" */
} tr__image_request;

/* Finds out what is in the folder and fills in *images, whose sets may be in error. */
TR_MUST_CHECK tr_status tr__image_data_open(const tr__image_request *request, tr__image_data *images);

#endif
