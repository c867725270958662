// Kernels of mlti_jax/ops for CPUs, called by XLA through its foreign function
// interface. The forms there are the reference; each kernel computes the same values up
// to rounding. Compiled once for each dtype, MLTI_TYPE: F32 or F64.

#include "first_block.h"
#include "gates.h"
#include "kernel_gradient.h"
#include "noise.h"
#include "pool_moments.h"
#include "taps.h"
#include "winograd.h"

#define MLTI_KERNEL(function, arguments, results) \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(                  \
      function##Kernel, function<ffi::MLTI_TYPE>, \
      ffi::Ffi::Bind().Ctx<ffi::ThreadPool>() arguments results)

#define MLTI_ARG .Arg<ffi::Buffer<ffi::MLTI_TYPE>>()
#define MLTI_RET .Ret<ffi::Buffer<ffi::MLTI_TYPE>>()
#define MLTI_ARGS_2 MLTI_ARG MLTI_ARG
#define MLTI_ARGS_3 MLTI_ARGS_2 MLTI_ARG
#define MLTI_ARGS_4 MLTI_ARGS_2 MLTI_ARGS_2
#define MLTI_ARGS_6 MLTI_ARGS_4 MLTI_ARGS_2
#define MLTI_ARGS_8 MLTI_ARGS_6 MLTI_ARGS_2
#define MLTI_ARGS_9 MLTI_ARGS_8 MLTI_ARG
#define MLTI_RETS_1 MLTI_RET
#define MLTI_RETS_2 MLTI_RET MLTI_RET
#define MLTI_RETS_3 MLTI_RET MLTI_RET MLTI_RET

MLTI_KERNEL(FirstBlock, MLTI_ARGS_3, MLTI_RETS_3);
MLTI_KERNEL(FirstBlockCotangent, MLTI_ARGS_8, MLTI_RETS_1);
MLTI_KERNEL(GatedPool, MLTI_ARGS_4, MLTI_RETS_3);
MLTI_KERNEL(GatedPoolCotangent, MLTI_ARGS_9, MLTI_RETS_2);
MLTI_KERNEL(KernelGradient, MLTI_ARGS_2, MLTI_RETS_1);
MLTI_KERNEL(PoolMoments, MLTI_ARGS_2, MLTI_RETS_3);
MLTI_KERNEL(PoolMomentsCotangent, MLTI_ARGS_6, MLTI_RETS_1);
MLTI_KERNEL(PoolMomentsTangent, MLTI_ARGS_4, MLTI_RETS_3);
MLTI_KERNEL(TapConvolution, MLTI_ARGS_2, MLTI_RETS_1);
MLTI_KERNEL(TapGradient, MLTI_ARGS_2, MLTI_RETS_1);
MLTI_KERNEL(TapMirrored, MLTI_ARGS_2, MLTI_RETS_1);
MLTI_KERNEL(WinogradConvolution, MLTI_ARGS_2, MLTI_RETS_1);
MLTI_KERNEL(WinogradGradient, MLTI_ARGS_2, MLTI_RETS_1);
MLTI_KERNEL(WinogradMirrored, MLTI_ARGS_2, MLTI_RETS_1);

// In both libraries, because the keys do not depend on the dtype.
XLA_FFI_DEFINE_HANDLER_SYMBOL(NormalKernel, Normal,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());
