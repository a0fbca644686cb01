/* What the parts of the double of cuDNN share: descriptors, and the tensors that they describe. */
#ifndef TR_TEST_CUDA_CUDNN_DOUBLE_H
#define TR_TEST_CUDA_CUDNN_DOUBLE_H

#include "library.h"
#include "cudnn_abi.h"

struct cudnnBackendDescriptor {
    int type, engine; /* engine: of configurations and what is made of them */
    bool finalized;
    std::map<int, std::vector<char>> values;
    std::map<int, std::vector<cudnnBackendDescriptor>> parts;
    std::shared_ptr<char> life = nullptr; /* of a plan */

    template <typename T> std::vector<T> all(int attribute) const
    {
        auto found = values.find(attribute);
        if (found == values.end()) return {};
        std::vector<T> result(found->second.size() / sizeof(T));
        memcpy(static_cast<void *>(result.data()), found->second.data(), result.size() * sizeof(T));
        return result;
    }
    template <typename T> T one(int attribute) const { return all<T>(attribute).at(0); }
    const cudnnBackendDescriptor &part(int attribute) const { return parts.at(attribute).at(0); }
};

namespace tr_emulator {

typedef std::array<int64_t, 4> index4;

struct cudnn_tensor {
    int data_type;
    element type;
    int64_t id, alignment;
    index4 dim, stride;
    bool is_virtual, is_number;

    explicit cudnn_tensor(const cudnnBackendDescriptor &d)
        : data_type(d.one<int>(CUDNN_ATTR_TENSOR_DATA_TYPE)), id(d.one<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID)),
          alignment(d.one<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT)),
          is_virtual(!d.all<char>(CUDNN_ATTR_TENSOR_IS_VIRTUAL).empty()),
          is_number(!d.all<char>(CUDNN_ATTR_TENSOR_IS_BY_VALUE).empty())
    {
        const auto dims = d.all<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS),
                   strides = d.all<int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
        type = data_type == CUDNN_DATA_HALF ? element::f16 : data_type == CUDNN_DATA_BFLOAT16 ? element::bf16 : element::f32;
        for (size_t i = 0; i < 4; i++) dim[i] = dims.at(i), stride[i] = strides.at(i);
    }
    int64_t at(const index4 &i) const
    {
        return i[0] * stride[0] + i[1] * stride[1] + i[2] * stride[2] + i[3] * stride[3];
    }
};

/* Attention, of cudnn_attention.cc: is a graph that? */
bool is_attention(const cudnnBackendDescriptor &graph);
/* What is given for it from outside. */
std::vector<cudnn_tensor> tensors_of_attention(const cudnnBackendDescriptor &graph);
/* at: addresses of memory by ids; numbers: those that were given as such. */
void compute_attention(const cudnnBackendDescriptor &graph, const std::map<int64_t, void *> &at,
    const std::map<int64_t, double> &numbers);

} /* namespace tr_emulator */

#endif
