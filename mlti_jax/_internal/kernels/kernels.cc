// Kernels of mlti_jax/ops for CPUs, called by XLA through its foreign function
// interface. The forms there are the reference; each kernel computes the same values up
// to rounding, for float32 and float64.

#include "kernel_gradient.h"
#include "pool_moments.h"
#include "taps.h"
#include "winograd.h"

#define MLTI_KERNEL(name, function, type, arguments, results)            \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(                                         \
      name, function<ffi::type>,                                         \
      ffi::Ffi::Bind().Ctx<ffi::ThreadPool>() arguments(type) results(type))

#define MLTI_ARG(type) .Arg<ffi::Buffer<ffi::type>>()
#define MLTI_RET(type) .Ret<ffi::Buffer<ffi::type>>()
#define MLTI_ARGS_2(type) MLTI_ARG(type) MLTI_ARG(type)
#define MLTI_ARGS_4(type) MLTI_ARGS_2(type) MLTI_ARGS_2(type)
#define MLTI_ARGS_6(type) MLTI_ARGS_4(type) MLTI_ARGS_2(type)
#define MLTI_RETS_1(type) MLTI_RET(type)
#define MLTI_RETS_3(type) MLTI_RET(type) MLTI_RET(type) MLTI_RET(type)

MLTI_KERNEL(PoolMomentsF32, PoolMoments, F32, MLTI_ARGS_2, MLTI_RETS_3);
MLTI_KERNEL(PoolMomentsF64, PoolMoments, F64, MLTI_ARGS_2, MLTI_RETS_3);
MLTI_KERNEL(PoolMomentsTangentF32, PoolMomentsTangent, F32, MLTI_ARGS_4, MLTI_RETS_3);
MLTI_KERNEL(PoolMomentsTangentF64, PoolMomentsTangent, F64, MLTI_ARGS_4, MLTI_RETS_3);
MLTI_KERNEL(PoolMomentsCotangentF32, PoolMomentsCotangent, F32, MLTI_ARGS_6, MLTI_RETS_1);
MLTI_KERNEL(PoolMomentsCotangentF64, PoolMomentsCotangent, F64, MLTI_ARGS_6, MLTI_RETS_1);
MLTI_KERNEL(KernelGradientF32, KernelGradient, F32, MLTI_ARGS_2, MLTI_RETS_1);
MLTI_KERNEL(KernelGradientF64, KernelGradient, F64, MLTI_ARGS_2, MLTI_RETS_1);
MLTI_KERNEL(WinogradGradientF32, WinogradGradient, F32, MLTI_ARGS_2, MLTI_RETS_1);
MLTI_KERNEL(WinogradGradientF64, WinogradGradient, F64, MLTI_ARGS_2, MLTI_RETS_1);
MLTI_KERNEL(WinogradConvolutionF32, WinogradConvolution, F32, MLTI_ARGS_2, MLTI_RETS_1);
MLTI_KERNEL(WinogradConvolutionF64, WinogradConvolution, F64, MLTI_ARGS_2, MLTI_RETS_1);
MLTI_KERNEL(WinogradMirroredF32, WinogradMirrored, F32, MLTI_ARGS_2, MLTI_RETS_1);
MLTI_KERNEL(WinogradMirroredF64, WinogradMirrored, F64, MLTI_ARGS_2, MLTI_RETS_1);
MLTI_KERNEL(TapConvolutionF32, TapConvolution, F32, MLTI_ARGS_2, MLTI_RETS_1);
MLTI_KERNEL(TapConvolutionF64, TapConvolution, F64, MLTI_ARGS_2, MLTI_RETS_1);
MLTI_KERNEL(TapMirroredF32, TapMirrored, F32, MLTI_ARGS_2, MLTI_RETS_1);
MLTI_KERNEL(TapMirroredF64, TapMirrored, F64, MLTI_ARGS_2, MLTI_RETS_1);
MLTI_KERNEL(TapGradientF32, TapGradient, F32, MLTI_ARGS_2, MLTI_RETS_1);
MLTI_KERNEL(TapGradientF64, TapGradient, F64, MLTI_ARGS_2, MLTI_RETS_1);
