# mend_torch: LibTorch, the reference of a benchmark and of tests/libtorch; made where it is
# installed (libtorch-dev). Not by its own config, which sets flags and wants much besides.
find_path(MEND_TORCH_INCLUDE ATen/ATen.h)
find_path(MEND_TORCH_API_INCLUDE torch/torch.h PATH_SUFFIXES torch/csrc/api/include)
find_library(MEND_TORCH_CPU torch_cpu)
find_library(MEND_TORCH_C10 c10)
mark_as_advanced(MEND_TORCH_INCLUDE MEND_TORCH_API_INCLUDE MEND_TORCH_CPU MEND_TORCH_C10)
if(MEND_TORCH_INCLUDE AND MEND_TORCH_API_INCLUDE AND MEND_TORCH_CPU AND MEND_TORCH_C10
    AND NOT TARGET mend_torch)
  add_library(mend_torch INTERFACE)
  target_include_directories(mend_torch SYSTEM INTERFACE
    ${MEND_TORCH_INCLUDE} ${MEND_TORCH_API_INCLUDE})
  target_link_libraries(mend_torch INTERFACE ${MEND_TORCH_CPU} ${MEND_TORCH_C10})
endif()
