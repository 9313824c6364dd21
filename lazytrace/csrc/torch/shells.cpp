#include "torch/shells.h"

namespace lazytrace {

namespace {
// Whether nobody else refers to it, and nothing was put on it.
bool is_untouched(const at::Tensor& shell) {
  c10::TensorImpl* impl = shell.unsafeGetTensorImpl();
  return shell.use_count() == 1 && shell.weak_use_count() == 1 && !impl->autograd_meta() &&
         !impl->pyobj_slot()->load_pyobj();
}

bool fits(const at::Tensor& shell, const c10::TensorImpl& base) {
  c10::TensorImpl* impl = shell.unsafeGetTensorImpl();
  return is_untouched(shell) && impl->key_set().raw_repr() == base.key_set().raw_repr() &&
         impl->dtype() == base.dtype() && impl->allow_tensor_metadata_change();
}
}  // namespace

at::Tensor Shells::show(int reg, const at::Tensor& base, const TensorMeta& meta, int64_t offset) {
  auto at = static_cast<size_t>(reg);
  if (at >= shells_.size()) shells_.resize(at + 1);
  at::Tensor& shell = shells_[at];
  c10::TensorImpl* of = base.unsafeGetTensorImpl();
  c10::IntArrayRef sizes = meta.sizes(), strides = meta.strides();
  if (shell.defined() && fits(shell, *of)) {
    c10::TensorImpl* impl = shell.unsafeGetTensorImpl();
    if (!impl->unsafe_storage()) ++out_;
    impl->set_storage_keep_dtype(c10::Storage(of->unsafe_storage()));
    bool same = impl->sizes() == sizes && impl->strides() == strides && impl->storage_offset() == offset;
    if (!same) impl->set_sizes_and_strides(sizes, strides, offset);
    if (!of->is_inference()) impl->set_version_counter(of->version_counter());
    return shell;
  }
  let_go(&shell);
  auto impl = c10::make_intrusive<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(of->unsafe_storage()),
                                                   of->key_set(), of->dtype());
  impl->set_sizes_and_strides(sizes, strides, offset);
  if (!of->is_inference()) impl->set_version_counter(of->version_counter());
  shell = at::Tensor(std::move(impl));
  ++out_;
  return shell;
}

bool Shells::empty(size_t at, at::Tensor* held) {
  at::Tensor& shell = shells_[at];
  // An operator that was given it for good has it no more.
  if (held->defined() && !held->is_same(shell)) return false;
  held->reset();
  c10::TensorImpl* impl = shell.unsafeGetTensorImpl();
  if (!impl->unsafe_storage()) return true;
  if (shell.use_count() != 1 || shell.weak_use_count() != 1 || impl->pyobj_slot()->load_pyobj()) {
    let_go(&shell);
    return true;
  }
  impl->release_resources();
  --out_;
  return true;
}

// It is somebody else's from now on.
void Shells::let_go(at::Tensor* shell) {
  if (!shell->defined()) return;
  if (shell->unsafeGetTensorImpl()->unsafe_storage()) --out_;
  shell->reset();
}

void Shells::empty_all() {
  at::Tensor none;
  for (size_t at = 0; at < shells_.size(); ++at)
    if (shells_[at].defined()) empty(at, &none);
}

}  // namespace lazytrace
