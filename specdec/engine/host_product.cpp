// Products of tokens with the weights of a linear layer on the host, whose outputs lie side by side in panels.
// `host_product.py` builds this file where there is a compiler, and packs the weights. It is an operator of PyTorch by the
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
constexpr int LINE = 16;                                    // numbers that are fetched at once

struct Layer {
  const float* panels;  // [panels, inputs, PANEL]; weights of outputs that there are not are 0
  const float* bias;    // [panels, PANEL]; null is none
  int64_t inputs, outputs;
};

// Some tokens times one panel. Every sum has its terms in the order of the inputs, whatever COUNT is, so that a token's
// outputs do not depend on the others.
template <int COUNT>
void multiply_tile(const Layer& layer, int64_t panel, const float* input, float* out) {
  const float* weights = layer.panels + panel * layer.inputs * PANEL;
  Lanes sums[COUNT][WIDE] = {};
  for (int64_t k = 0; k < layer.inputs; ++k) {
    // The panel behind this one is on its way while this one is used.
    for (int i = 0; i < PANEL; i += LINE) __builtin_prefetch(weights + (layer.inputs + k) * PANEL + i);
    Lanes parts[WIDE];
    for (int w = 0; w < WIDE; ++w) parts[w] = load(weights + k * PANEL + w * LANES);
    for (int r = 0; r < COUNT; ++r)
      for (int w = 0; w < WIDE; ++w) sums[r][w] += input[r * layer.inputs + k] * parts[w];
  }
  const int64_t width = std::min<int64_t>(PANEL, layer.outputs - panel * PANEL);
  for (int r = 0; r < COUNT; ++r) {
    float row[PANEL];
    for (int w = 0; w < WIDE; ++w) {
      if (layer.bias) sums[r][w] += load(layer.bias + panel * PANEL + w * LANES);
      store(row + w * LANES, sums[r][w]);
    }
    std::memcpy(out + r * layer.outputs + panel * PANEL, row, width * sizeof(float));
  }
}

typedef void (*Tile)(const Layer&, int64_t, const float*, float*);

template <int... I>
Tile tile_of(int64_t count, std::integer_sequence<int, I...>) {
  static constexpr Tile tiles[] = {multiply_tile<I + 1>...};
  return tiles[count - 1];
}

void multiply_panel(const Layer& layer, int64_t panel, const float* input, float* out, int64_t tokens) {
  const int64_t tiles = (tokens + ROWS - 1) / ROWS;
  for (int64_t t = 0; t < tiles; ++t) {  // of about the same size
    const int64_t first = tokens * t / tiles, count = tokens * (t + 1) / tiles - first;
    const Tile tile = tile_of(count, std::make_integer_sequence<int, ROWS>());
    tile(layer, panel, input + first * layer.inputs, out + first * layer.outputs);
  }
}

void multiply(const Layer& layer, const float* input, float* out, int64_t tokens, int64_t threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t panel = 0; panel < (layer.outputs + PANEL - 1) / PANEL; ++panel)
    multiply_panel(layer, panel, input, out, tokens);
}

// [..., inputs] -> [..., outputs]
Tensor product(const Tensor& input, const Tensor& panels, const std::optional<Tensor>& bias, int64_t outputs) {
  const int64_t inputs = panels.size(1);
  STD_TORCH_CHECK(input.size(-1) == inputs, "a product of ", input.size(-1), " numbers with weights for ", inputs);
  std::vector<int64_t> shape(input.sizes().begin(), input.sizes().end());
  shape.back() = outputs;
  const Tensor dense = input.is_contiguous() ? input : torch::stable::contiguous(input);
  const Tensor out = torch::stable::new_empty(dense, shape);
  const Layer layer{panels.const_data_ptr<float>(), bias ? bias->const_data_ptr<float>() : nullptr, inputs, outputs};
  multiply(layer, dense.const_data_ptr<float>(), out.mutable_data_ptr<float>(), dense.numel() / inputs,
           torch::stable::get_num_threads());
  return out;
}

}  // namespace

extern "C" int64_t panel_width() { return PANEL; }

// Makes this library PyTorch's operator, in place of any other.
extern "C" void serve() {
  TorchLibraryHandle library;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_library_init_impl("specdec", "CPU", __FILE__, __LINE__, &library));
  STABLE_TORCH_ERROR_CODE_CHECK(torch_library_impl(library, "multiply", TORCH_BOX(&product), TORCH_ABI_VERSION));
}
