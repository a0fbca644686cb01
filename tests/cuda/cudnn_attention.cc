/*
 * The double of cuDNN's attention. As the real one it finds attention in a graph of operations that has to be written in
 * just one way, and refuses any other. What it has accepted it computes operation by operation, in double precision but
 * for what is 16 bits wide on its way into a product.
 */
#include "cudnn_double.h"

using namespace tr_emulator;

namespace {

/* An operation: its inputs, and what it writes. */
struct step {
    std::string name;
    std::vector<cudnn_tensor> in;
    cudnn_tensor out;
    int64_t axis; /* of GEN_INDEX */
};

const std::map<int, std::string> pointwise_names = {
    {CUDNN_POINTWISE_ADD, "add"}, {CUDNN_POINTWISE_MUL, "mul"}, {CUDNN_POINTWISE_DIV, "div"}, {CUDNN_POINTWISE_SUB, "sub"},
    {CUDNN_POINTWISE_EXP, "exp"}, {CUDNN_POINTWISE_LOG, "log"}, {CUDNN_POINTWISE_CMP_GE, "ge"},
    {CUDNN_POINTWISE_GEN_INDEX, "index"}, {CUDNN_POINTWISE_BINARY_SELECT, "select"}};

step step_of(const cudnnBackendDescriptor &op)
{
    const auto tensors = [&](std::initializer_list<int> attributes) {
        std::vector<cudnn_tensor> found;
        for (int a : attributes)
            if (op.parts.count(a)) found.emplace_back(op.part(a));
        return found;
    };
    const auto tensor = [&](int attribute) { return cudnn_tensor(op.part(attribute)); };
    switch (op.type) {
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        return {"matmul", tensors({CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_BDESC}),
            tensor(CUDNN_ATTR_OPERATION_MATMUL_CDESC), 0};
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR: {
        const int mode = op.part(CUDNN_ATTR_OPERATION_REDUCTION_DESC).one<int>(CUDNN_ATTR_REDUCTION_OPERATOR);
        return {mode == CUDNN_REDUCE_TENSOR_ADD ? "sum" : "max", tensors({CUDNN_ATTR_OPERATION_REDUCTION_XDESC}),
            tensor(CUDNN_ATTR_OPERATION_REDUCTION_YDESC), 0};
    }
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
        return {"reshape", tensors({CUDNN_ATTR_OPERATION_RESHAPE_XDESC}), tensor(CUDNN_ATTR_OPERATION_RESHAPE_YDESC), 0};
    default: {
        const cudnnBackendDescriptor &how = op.part(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
        const auto axis = how.all<int64_t>(CUDNN_ATTR_POINTWISE_AXIS);
        return {pointwise_names.at(how.one<int>(CUDNN_ATTR_POINTWISE_MODE)),
            tensors({CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                CUDNN_ATTR_OPERATION_POINTWISE_TDESC}),
            tensor(CUDNN_ATTR_OPERATION_POINTWISE_YDESC), axis.empty() ? -1 : axis[0]};
    }
    }
}

std::vector<step> steps_of(const cudnnBackendDescriptor &graph)
{
    std::vector<step> steps;
    for (const cudnnBackendDescriptor &op : graph.parts.at(CUDNN_ATTR_OPERATIONGRAPH_OPS)) steps.push_back(step_of(op));
    return steps;
}

/* A graph in words: what is given is A, B, … in the order of use, a number #A, …; a result has its operation's number;
 * h is for 16 bits, i and b for integers and truths. */
std::string words_of(const std::vector<step> &steps)
{
    std::map<int64_t, std::string> names;
    std::string words;
    char next = 'A';
    const auto name = [&](const cudnn_tensor &t) {
        if (!names.count(t.id)) names[t.id] = std::string(t.is_number ? "#" : "") + next++;
        const char *type = t.type != element::f32 ? "h" : t.data_type == CUDNN_DATA_INT32 ? "i" :
            t.data_type == CUDNN_DATA_BOOLEAN ? "b" : "";
        return names[t.id] + type;
    };
    for (size_t i = 0; i < steps.size(); i++) {
        const step &s = steps[i];
        words += s.name + (s.axis > 0 ? std::to_string(s.axis) : "");
        for (const cudnn_tensor &t : s.in) words += " " + name(t);
        if (s.out.is_virtual) names[s.out.id] = std::to_string(i);
        words += " > " + name(s.out) + "\n";
    }
    return words;
}

/* Forward and backward, and both with a causal mask. */
const std::string accepted[] = {
    "matmul Ah Bh > 0\nmul 0 #C > 1\n"
    "max 1 > 2\nsub 1 2 > 3\nexp 3 > 4\nsum 4 > 5\nlog 5 > 6\nadd 2 6 > D\ndiv 4 5 > 8h\nmatmul 8h Eh > Fh\n",
    "matmul Ah Bh > 0\nmul 0 #C > 1\nindex2 1 > 2i\nindex3 1 > 3i\nge 2i 3i > 4b\nselect 1 #D 4b > 5\n"
    "max 5 > 6\nsub 5 6 > 7\nexp 7 > 8\nsum 8 > 9\nlog 9 > 10\nadd 6 10 > E\ndiv 8 9 > 12h\nmatmul 12h Fh > Gh\n",
    "mul Ah Bh > 0\nsum 0 > 1\nmul 1 #C > D\nmatmul Eh Fh > 3\nmul 3 #G > 4\nsub 4 H > 5\nexp 5 > 6\n"
    "reshape 6 > 7h\nmatmul 7h Ah > Ih\nmatmul Ah Jh > 9\nsub 9 D > 10\nmul 10 6 > 11\nmul 11 #G > 12\n"
    "reshape 12 > 13h\nmatmul 13h Eh > Kh\nreshape Fh > 15h\nmatmul 12 15h > Lh\n",
    "mul Ah Bh > 0\nsum 0 > 1\nmul 1 #C > D\nmatmul Eh Fh > 3\nmul 3 #G > 4\nsub 4 H > 5\n"
    "index2 5 > 6i\nindex3 5 > 7i\nge 6i 7i > 8b\nselect 5 #I 8b > 9\nexp 9 > 10\n"
    "reshape 10 > 11h\nmatmul 11h Ah > Jh\nmatmul Ah Kh > 13\nsub 13 D > 14\nmul 14 10 > 15\nmul 15 #G > 16\n"
    "reshape 16 > 17h\nmatmul 17h Eh > Lh\nreshape Fh > 19h\nmatmul 16 19h > Mh\n"};

/* A tensor's numbers while a graph is computed, by rows. */
struct block {
    index4 dim;
    std::vector<double> of;

    explicit block(const index4 &d) : dim(d), of(size_t(d[0] * d[1] * d[2] * d[3])) {}
    size_t place(const index4 &i) const /* a size of 1 serves for every index */
    {
        int64_t place = 0;
        for (size_t d = 0; d < 4; d++) place = place * dim[d] + (dim[d] == 1 ? 0 : i[d]);
        return size_t(place);
    }
    double &operator[](const index4 &i) { return of.at(place(i)); }
    double operator[](const index4 &i) const { return of.at(place(i)); }
};

double applied(const step &s, const index4 &i, double x, double b, double t)
{
    if (s.name == "index") return double(i[size_t(s.axis)]);
    if (s.name == "select") return t != 0 ? x : b;
    if (s.name == "ge") return x >= b;
    if (s.name == "exp") return exp(x);
    if (s.name == "log") return log(x);
    return s.name == "add" ? x + b : s.name == "sub" ? x - b : s.name == "mul" ? x * b : x / b;
}

void multiply(const block &a, const block &b, block &c)
{
    const int64_t rows = a.dim[2], inner = a.dim[3], columns = b.dim[3];
    add_products({{a.dim[0] * a.dim[1], inner * columns, rows * inner, rows * columns}, {rows, 0, inner, columns},
                     {inner, columns, 1, 0}, {columns, 1, 0, 1}},
        b.of, a.of, c.of);
}

block computed(const step &s, const std::vector<const block *> &in)
{
    block out(s.out.dim);
    if (s.name == "matmul") multiply(*in[0], *in[1], out);
    else if (s.name == "sum" || s.name == "max") {
        const bool sums = s.name == "sum";
        if (!sums) std::fill(out.of.begin(), out.of.end(), -INFINITY);
        for_each(in[0]->dim, [&](const index4 &i) {
            double &to = out[i];
            to = sums ? to + (*in[0])[i] : std::max(to, (*in[0])[i]);
        });
    } else if (s.name == "reshape")
        for_each(out.dim, [&](const index4 &i) { out[i] = (*in[0])[{i[0], i[1], i[3], i[2]}]; });
    else
        for_each(out.dim, [&](const index4 &i) {
            out[i] = applied(s, i, (*in[0])[i], in.size() > 1 ? (*in[1])[i] : 0, in.size() > 2 ? (*in[2])[i] : 0);
        });
    return out;
}

bool fits(const step &s)
{
    if (s.name == "matmul")
        return s.in[0].dim[3] == s.in[1].dim[2] && s.out.dim[2] == s.in[0].dim[2] && s.out.dim[3] == s.in[1].dim[3];
    return s.name != "reshape" || (s.out.dim[2] == s.in[0].dim[3] && s.out.dim[3] == s.in[0].dim[2]);
}

} /* namespace */

bool tr_emulator::is_attention(const cudnnBackendDescriptor &graph)
{
    const std::vector<step> steps = steps_of(graph);
    const std::string words = words_of(steps);
    const int64_t dim = steps[0].in[0].dim[3];
    return std::find(accepted, std::end(accepted), words) != std::end(accepted) && dim % 8 == 0 && dim <= 128 &&
        std::all_of(steps.begin(), steps.end(), fits);
}

std::vector<cudnn_tensor> tr_emulator::tensors_of_attention(const cudnnBackendDescriptor &graph)
{
    std::vector<cudnn_tensor> found;
    const auto note = [&](const cudnn_tensor &t) {
        if (!t.is_virtual && std::none_of(found.begin(), found.end(), [&](const auto &f) { return f.id == t.id; }))
            found.push_back(t);
    };
    for (const step &s : steps_of(graph)) {
        for (const cudnn_tensor &t : s.in) note(t);
        note(s.out);
    }
    return found;
}

void tr_emulator::compute_attention(const cudnnBackendDescriptor &graph, const std::map<int64_t, void *> &at,
    const std::map<int64_t, double> &numbers)
{
    std::map<int64_t, block> blocks;
    for (const step &s : steps_of(graph)) {
        std::vector<const block *> in;
        for (const cudnn_tensor &t : s.in) {
            const auto [place, is_new] = blocks.emplace(t.id, block(t.dim));
            if (is_new)
                for_each(t.dim, [&, &of = place->second](const index4 &i) {
                    of[i] = t.is_number ? numbers.at(t.id) : load(t.type, at.at(t.id), t.at(i));
                });
            in.push_back(&place->second);
        }
        block out = computed(s, in);
        for_each(s.out.dim, [&](const index4 &i) {
            double room; /* for 16 bits */
            if (!s.out.is_virtual) store(s.out.type, at.at(s.out.id), s.out.at(i), out[i]);
            if (s.out.type != element::f32) store(s.out.type, &room, 0, out[i]), out[i] = load(s.out.type, &room, 0);
        });
        blocks.emplace(s.out.id, std::move(out));
    }
}
