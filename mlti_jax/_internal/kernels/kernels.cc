// Kernels of mlti_jax/ops for CPUs, called by XLA through its foreign function
// interface. The forms there are the reference; each kernel computes the same values up
// to rounding, for float32 and float64.

#include "first_block.h"
#include "kernel_gradient.h"
#include "pool_moments.h"
#include "taps.h"
#include "winograd.h"

#define MLTI_KERNEL_OF(name, function, type, arguments, results) \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(                                 \
      name, function<ffi::type>,                                 \
      ffi::Ffi::Bind().Ctx<ffi::ThreadPool>() arguments(type) results(type))

#define MLTI_KERNEL(function, arguments, results)                  \
  MLTI_KERNEL_OF(function##F32, function, F32, arguments, results); \
  MLTI_KERNEL_OF(function##F64, function, F64, arguments, results)

#define MLTI_ARG(type) .Arg<ffi::Buffer<ffi::type>>()
#define MLTI_RET(type) .Ret<ffi::Buffer<ffi::type>>()
#define MLTI_ARGS_2(type) MLTI_ARG(type) MLTI_ARG(type)
#define MLTI_ARGS_3(type) MLTI_ARGS_2(type) MLTI_ARG(type)
#define MLTI_ARGS_4(type) MLTI_ARGS_2(type) MLTI_ARGS_2(type)
#define MLTI_ARGS_6(type) MLTI_ARGS_4(type) MLTI_ARGS_2(type)
#define MLTI_ARGS_8(type) MLTI_ARGS_6(type) MLTI_ARGS_2(type)
#define MLTI_RETS_1(type) MLTI_RET(type)
#define MLTI_RETS_3(type) MLTI_RET(type) MLTI_RET(type) MLTI_RET(type)

MLTI_KERNEL(FirstBlock, MLTI_ARGS_3, MLTI_RETS_3);
MLTI_KERNEL(FirstBlockCotangent, MLTI_ARGS_8, MLTI_RETS_1);
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
