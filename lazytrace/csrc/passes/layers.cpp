#include <ATen/TensorUtils.h>

#include <algorithm>
#include <cstring>

#include "passes/told.h"
#include "passes/ways.h"

namespace lazytrace {

namespace {

// Another look at the memory of a tensor. Shares its version, as views do, but is no view to autograd: only
// for registers that never leave the program and that nothing writes to.
at::Tensor alias_of(const at::Tensor& base, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                    int64_t offset) {
  c10::TensorImpl* of = base.unsafeGetTensorImpl();
  auto impl = c10::make_intrusive<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(of->unsafe_storage()),
                                                   of->key_set(), of->dtype());
  impl->set_sizes_and_strides(sizes, strides, offset);
  if (!of->is_inference()) impl->set_version_counter(of->version_counter());
  return at::Tensor(std::move(impl));
}

// What reshape() gives where it takes no copy, undefined where it does: kernels add up in another order where
// the strides of dimensions of one item are others.
at::Tensor reshaped(const at::Tensor& tensor, const at::DimVector& sizes) {
  auto strides = at::detail::computeStride(tensor.sizes(), tensor.strides(), sizes);
  return strides ? alias_of(tensor, sizes, *strides, tensor.storage_offset()) : at::Tensor();
}

// Whether matmul multiplies a stack of matrices and a matrix as two matrices, whatever requires gradients
// (`should_fold` in ATen/native/LinearAlgebra.cpp).
bool is_folded(const at::Tensor& stack) {
  for (int64_t i = 0; i + 2 < stack.dim(); ++i)
    if (stack.stride(i) != stack.stride(i + 1) * stack.size(i + 1)) return false;
  return true;
}

// linear() on a contiguous input is addmm, or mm, of the input as a matrix and the transposed weight
// (ATen/native/Linear.cpp).
class Linear final : public Lowered {
 public:
  static Way make(const Step& step) {
    auto made = std::make_unique<Linear>();
    const Arguments& a = step.arguments;
    if (a.size() != 3 || step.takes_numbers || !made->input_.set(a[0]) || !made->weight_.set(a[1]))
      return nullptr;
    made->biased_ = a[2].kind == Argument::Kind::Register;
    if (made->biased_) made->bias_.set(a[2]);
    auto& sizes = step.results[0].meta->sizes();
    // An input without a batch is multiplied as a vector.
    if (sizes.size() != 2 && sizes.size() != 3) return nullptr;
    made->width_ = sizes.back();
    made->rows_ = 1;
    for (size_t i = 0; i + 1 < sizes.size(); ++i) made->rows_ *= sizes[i];
    return made;
  }

  bool run(const Step& step, const Desk& desk) const override {
    const Result& result = step.results[0];
    const at::Tensor &input = input_.get(desk), &weight = weight_.get(desk);
    if (!input_.fits(desk) || !weight_.fits(desk) || (biased_ && !bias_.fits(desk))) return false;
    if (!input.is_contiguous() || weight.dim() != 2 ||
        input.dim() != static_cast<int64_t>(result.meta->sizes().size()) || (!biased_ && !is_folded(input)))
      return false;
    int64_t inner = weight.size(1);
    bool flat = input.dim() == 2;
    at::Tensor matrix = flat ? input : reshaped(input, {rows_, inner});
    at::Tensor whole = blank(*result.meta, desk.recycler);
    if (!matrix.defined() || !whole.defined()) return false;
    at::AutoDispatchBelowADInplaceOrView below;
    at::Tensor out = flat ? whole : alias_of(whole, {rows_, width_}, {width_, 1}, 0);
    at::Tensor transposed = alias_of(weight, {inner, weight.size(0)}, {weight.stride(1), weight.stride(0)},
                                     weight.storage_offset());
    if (biased_)
      at::cpu::addmm_outf(bias_.get(desk), matrix, transposed, 1, 1, out);
    else
      at::cpu::mm_outf(matrix, transposed, out);
    keep(result, std::move(whole), desk);
    return true;
  }

 private:
  Slot<const at::Tensor&> input_, weight_, bias_;
  bool biased_ = false;
  int64_t rows_ = 0, width_ = 0;
};
bool is_contiguous(const TensorMeta& meta) {
  int64_t expected = 1;
  for (size_t i = meta.sizes().size(); i-- > 0; expected *= meta.sizes()[i])
    if (meta.sizes()[i] != 1 && meta.strides()[i] != expected) return false;
  return true;
}

// addmm with one bias for all rows copies it into the result and adds the product to that
// (ATen/native/LinearAlgebra.cpp). Here the rows are copied without a view of the bias.
class BiasedProduct final : public Lowered {
 public:
  static Way make(const Step& step) {
    auto made = std::make_unique<BiasedProduct>();
    const Arguments& a = step.arguments;
    const TensorMeta& meta = *step.results[0].meta;
    auto is_one = [](const Argument& argument) {
      return argument.kind == Argument::Kind::Constant && argument.constant.isScalar() &&
             argument.constant.toScalar().equal(1);
    };
    bool real = meta.dtype() == at::kFloat || meta.dtype() == at::kDouble;
    if (a.size() != 5 || !real || meta.sizes().size() != 2 || !is_contiguous(meta)) return nullptr;
    if (!is_one(a[3]) || !is_one(a[4])) return nullptr;
    for (size_t i = 0; i < 3; ++i)
      if (a[i].kind != Argument::Kind::Register) return nullptr;
    bool set = made->bias_.set(a[0]) && made->one_.set(a[1]) && made->other_.set(a[2]);
    return set ? std::move(made) : nullptr;
  }

  bool run(const Step& step, const Desk& desk) const override {
    const Result& result = step.results[0];
    c10::ScalarType dtype = result.meta->dtype();
    if (!bias_.fits(desk) || !one_.fits(desk) || !other_.fits(desk)) return false;
    if (!bias_.is(dtype, desk) || !one_.is(dtype, desk) || !other_.is(dtype, desk)) return false;
    const at::Tensor &bias = bias_.get(desk), &one = one_.get(desk), &other = other_.get(desk);
    int64_t rows = result.meta->sizes()[0], columns = result.meta->sizes()[1];
    bool fits = bias.dim() == 1 && bias.size(0) == columns && bias.is_contiguous() && one.dim() == 2 &&
                one.size(0) == rows && other.dim() == 2 && other.size(1) == columns;
    if (!fits) return false;
    at::Tensor out = blank(*result.meta, desk.recycler);
    if (!out.defined()) return false;
    auto* to = static_cast<char*>(out.unsafeGetTensorImpl()->mutable_data());
    size_t width = static_cast<size_t>(columns) * c10::elementSize(dtype);
    for (int64_t row = 0; row < rows; ++row, to += width) std::memcpy(to, bias.const_data_ptr(), width);
    at::AutoDispatchBelowADInplaceOrView below;
    at::cpu::addmm_outf(out, one, other, 1, 1, out);
    keep(result, std::move(out), desk);
    return true;
  }

 private:
  Slot<const at::Tensor&> bias_, one_, other_;
};

// matmul of two stacks of matrices with one batch is bmm of all their matrices, that of a stack and a matrix
// mm of all its rows (ATen/native/LinearAlgebra.cpp). Here, where neither takes a copy.
class Product final : public Lowered {
 public:
  static Way make(const Step& step) {
    auto made = std::make_unique<Product>();
    const TensorMeta& meta = *step.results[0].meta;
    bool real = meta.dtype() == at::kFloat || meta.dtype() == at::kDouble;
    if (!real || step.arguments.size() != 2 || meta.sizes().size() < 2 || !is_contiguous(meta))
      return nullptr;
    for (const Argument& argument : step.arguments)
      if (argument.kind != Argument::Kind::Register) return nullptr;
    made->sizes_ = meta.sizes();
    made->batch_ = 1;
    for (size_t i = 0; i + 2 < made->sizes_.size(); ++i) made->batch_ *= made->sizes_[i];
    return made->one_.set(step.arguments[0]) && made->other_.set(step.arguments[1]) ? std::move(made)
                                                                                    : nullptr;
  }

  bool run(const Step& step, const Desk& desk) const override {
    const Result& result = step.results[0];
    c10::ScalarType dtype = result.meta->dtype();
    if (!one_.fits(desk) || !other_.fits(desk) || !one_.is(dtype, desk) || !other_.is(dtype, desk))
      return false;
    const at::Tensor &one = one_.get(desk), &other = other_.get(desk);
    bool folds = other.dim() == 2;
    // The rows of a stack of matrices, or all its matrices.
    at::Tensor left = folds ? rows_of(one) : matrices_of(one);
    at::Tensor right = folds ? other : matrices_of(other);
    if (!left.defined() || !right.defined()) return false;
    at::Tensor whole = blank(*result.meta, desk.recycler);
    if (!whole.defined()) return false;
    int64_t rows = *(sizes_.end() - 2), columns = sizes_.back();
    at::AutoDispatchBelowADInplaceOrView below;
    if (folds) {
      at::Tensor out =
          sizes_.size() == 2 ? whole : alias_of(whole, {batch_ * rows, columns}, {columns, 1}, 0);
      at::cpu::mm_outf(left, right, out);
    } else {
      at::Tensor out = alias_of(whole, {batch_, rows, columns}, {rows * columns, columns, 1}, 0);
      at::cpu::bmm_outf(left, right, out);
    }
    keep(result, std::move(whole), desk);
    return true;
  }

 private:
  // Whether its batch is that of the result.
  bool has_batch(const at::Tensor& tensor) const {
    return tensor.dim() == static_cast<int64_t>(sizes_.size()) &&
           std::equal(sizes_.begin(), sizes_.end() - 2, tensor.sizes().begin());
  }
  at::Tensor rows_of(const at::Tensor& tensor) const {
    if (!has_batch(tensor)) return {};
    if (tensor.dim() == 2) return tensor;
    return is_folded(tensor) ? reshaped(tensor, {batch_ * *(sizes_.end() - 2), tensor.size(-1)})
                             : at::Tensor();
  }
  at::Tensor matrices_of(const at::Tensor& tensor) const {
    return has_batch(tensor) ? reshaped(tensor, {batch_, tensor.size(-2), tensor.size(-1)}) : at::Tensor();
  }

  Slot<const at::Tensor&> one_, other_;
  c10::SmallVector<int64_t, 5> sizes_;
  int64_t batch_ = 1;
};

}  // namespace

Way matmul(const Step& step) { return Product::make(step); }

Way linear(const Step& step) { return Linear::make(step); }

Way addmm(const Step& step) {
  auto usual = out(LAZYTRACE_KERNEL(addmm_out, addmm_outf), step.arguments);
  auto biased = usual ? BiasedProduct::make(step) : nullptr;
  if (!biased) return usual;
  return either(std::move(biased), std::move(usual));
}

}  // namespace lazytrace
