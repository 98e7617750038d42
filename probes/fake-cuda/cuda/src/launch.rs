//! Launches.

use gpucause_fake_cuda::exports;
use gpucause_fake_cuda::function::Call;
use gpucause_fake_cuda::types::Ptr;

exports! {
    [cuLaunchKernel cuLaunchKernel_ptsz]
        (kernel: Ptr, _gx: u32, _gy: u32, _gz: u32, _bx: u32, _by: u32, _bz: u32, _shared: u32, _stream: Ptr,
         _arguments: Ptr, _extra: Ptr)
        |function| function.run(Call::launch(kernel));
    [cuLaunchCooperativeKernel cuLaunchCooperativeKernel_ptsz]
        (kernel: Ptr, _gx: u32, _gy: u32, _gz: u32, _bx: u32, _by: u32, _bz: u32, _shared: u32, _stream: Ptr,
         _arguments: Ptr)
        |function| function.run(Call::launch(kernel));
    [cuLaunchKernelEx cuLaunchKernelEx_ptsz]
        (_config: Ptr, kernel: Ptr, _arguments: Ptr, _extra: Ptr)
        |function| function.run(Call::launch(kernel));
    [cuLaunch] (kernel: Ptr) |function| function.run(Call::launch(kernel));
    [cuLaunchGrid cuLaunchGridAsync] (kernel: Ptr, _width: i32, _height: i32, _stream: Ptr)
        |function| function.run(Call::launch(kernel));
    [cuLaunchCooperativeKernelMultiDevice cuLaunchHostFunc cuLaunchHostFunc_ptsz]
        () |function| function.plain();
}
