// Products of tokens with the weights of a linear layer on the host, whose outputs lie side by side in panels.
// `product.py` builds this file where there is a compiler, and packs the weights. It is an operator of PyTorch by the
// headers that are made for this: they are the same for every version, and take a second to compile.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <vector>

#include "lanes.h"

using torch::stable::Tensor;

namespace {

constexpr int WIDE = 2;                                     // vectors of a panel
constexpr int PANEL = WIDE * LANES;                         // outputs of a panel
constexpr int ROWS = LANES == 16 ? 12 : LANES == 8 ? 5 : 8;  // tokens whose sums fit the processor's registers

template <class Weight>
struct Layer {
  const Weight* panels;  // [panels, inputs, PANEL]; weights of outputs that there are not are 0
  const float* bias;     // [panels, PANEL]; null is none
  int64_t inputs, outputs;
};

// The weights of a panel for one input.
void widen(const float* weights, Lanes* parts) {
  for (int w = 0; w < WIDE; ++w) parts[w] = load(weights + w * LANES);
}

// In bfloat16 the two vectors lie in each other, first, second, first, second, so that a number of 32 bits has one of each.
void widen(const Bfloat16* weights, Lanes* parts) {
  static_assert(WIDE == 2);
  Bits both;
  std::memcpy(&both, weights, sizeof both);
  parts[0] = (Lanes)(both << 16);
  parts[1] = (Lanes)(both & int32_t(0xffff0000));
}

// Some tokens times one panel. Every sum has its terms in the order of the inputs, whatever COUNT is, so that a token's
// outputs do not depend on the others.
template <class Weight, int COUNT>
void multiply_tile(const Layer<Weight>& layer, int64_t panel, const float* input, float* out) {
  const Weight* weights = layer.panels + panel * layer.inputs * PANEL;
  Lanes sums[COUNT][WIDE];  // in registers; `= {}` would have them cleared in memory first
  for (int r = 0; r < COUNT; ++r)
    for (int w = 0; w < WIDE; ++w) sums[r][w] = Lanes{};
  for (int64_t k = 0; k < layer.inputs; ++k) {
    // The panel behind this one is on its way while this one is used.
    fetch(weights + (layer.inputs + k) * PANEL, PANEL);
    Lanes parts[WIDE];
    widen(weights + k * PANEL, parts);
    for (int r = 0; r < COUNT; ++r)
      for (int w = 0; w < WIDE; ++w) sums[r][w] += input[r * layer.inputs + k] * parts[w];
  }
  const int64_t width = std::min<int64_t>(PANEL, layer.outputs - panel * PANEL);
  for (int r = 0; r < COUNT; ++r) {
    float part[PANEL], *to = out + r * layer.outputs + panel * PANEL, *row = width == PANEL ? to : part;
    for (int w = 0; w < WIDE; ++w) {
      if (layer.bias) sums[r][w] += load(layer.bias + panel * PANEL + w * LANES);
      store(row + w * LANES, sums[r][w]);
    }
    if (row == part) std::memcpy(to, part, width * sizeof(float));
  }
}

template <class Weight>
using Tile = void (*)(const Layer<Weight>&, int64_t, const float*, float*);

template <class Weight, int... I>
Tile<Weight> tile_of(int64_t count, std::integer_sequence<int, I...>) {
  static constexpr Tile<Weight> tiles[] = {multiply_tile<Weight, I + 1>...};
  return tiles[count - 1];
}

template <class Weight>
void multiply_panel(const Layer<Weight>& layer, int64_t panel, const float* input, float* out, int64_t tokens) {
  const int64_t tiles = (tokens + ROWS - 1) / ROWS;
  for (int64_t t = 0; t < tiles; ++t) {  // of about the same size
    const int64_t first = tokens * t / tiles, count = tokens * (t + 1) / tiles - first;
    const Tile<Weight> tile = tile_of<Weight>(count, std::make_integer_sequence<int, ROWS>());
    tile(layer, panel, input + first * layer.inputs, out + first * layer.outputs);
  }
}

template <class Weight>
void multiply(const Layer<Weight>& layer, const float* input, float* out, int64_t tokens) {
  const int64_t threads = torch::stable::get_num_threads();
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(dynamic)
  for (int64_t panel = 0; panel < (layer.outputs + PANEL - 1) / PANEL; ++panel)
    multiply_panel(layer, panel, input, out, tokens);
}

// A new tensor, by a function of PyTorch's C interface; as an operator it would be looked up by its name each time.
Tensor empty(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * shape[i];
  AtenTensorHandle made;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(shape.size(), shape.data(), strides.data(), aoti_torch_dtype_float32(),
                                                  aoti_torch_device_type_cpu(), 0, &made));
  return Tensor(made);
}

// [..., inputs] -> [..., outputs]
Tensor product(const Tensor& input, const Tensor& panels, const std::optional<Tensor>& bias, int64_t outputs) {
  const int64_t inputs = panels.size(1);
  STD_TORCH_CHECK(input.size(-1) == inputs, "a product of ", input.size(-1), " numbers with weights for ", inputs);
  std::vector<int64_t> shape(input.sizes().begin(), input.sizes().end());
  shape.back() = outputs;
  const Tensor dense = input.is_contiguous() ? input : torch::stable::contiguous(input), out = empty(shape);
  const float *from = dense.const_data_ptr<float>(), *added = bias ? bias->const_data_ptr<float>() : nullptr;
  float* to = out.mutable_data_ptr<float>();
  const int64_t tokens = dense.numel() / inputs;
  if (panels.scalar_type() == torch::headeronly::ScalarType::BFloat16)
    multiply(Layer<Bfloat16>{(const Bfloat16*)panels.const_data_ptr(), added, inputs, outputs}, from, to, tokens);
  else
    multiply(Layer<float>{panels.const_data_ptr<float>(), added, inputs, outputs}, from, to, tokens);
  return out;
}

}  // namespace

extern "C" int64_t panel_width() { return PANEL; }

// Makes this library PyTorch's operator, in place of any other.
extern "C" void serve() {
  TorchLibraryHandle library;
  TORCH_ERROR_CODE_CHECK(aoti_torch_library_init_impl("specdec", "CPU", __FILE__, __LINE__, &library));
  TORCH_ERROR_CODE_CHECK(torch_library_impl(library, "multiply", TORCH_BOX(&product), TORCH_ABI_VERSION));
}
