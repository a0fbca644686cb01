/*
 * Trireme: distributed deep-learning training in C. This header includes them all; start at README.md.
 */
#ifndef TRIREME_H
#define TRIREME_H

#include <trireme/base.h>
#include <trireme/tensor.h>
#include <trireme/device.h>
#include <trireme/ops.h>
#include <trireme/kernels.h>
#include <trireme/autograd.h>
#include <trireme/nn.h>
#include <trireme/optim.h>
#include <trireme/store.h>
#include <trireme/comm.h>
#include <trireme/data.h>
#include <trireme/rpc.h>
#include <trireme/parallel.h>
#include <trireme/dist.h>
#include <trireme/launch.h>
#include <trireme/models.h>
#include <trireme/train.h>

#endif
