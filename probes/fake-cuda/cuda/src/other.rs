//! Functions whose arguments do not matter here.

use gpucause_fake_cuda::exports;

exports! {
    [cuIpcOpenMemHandle cuImportExternalMemory cuIpcCloseMemHandle cuDestroyExternalMemory
     cuMemPoolTrimTo cuMemPoolDestroy cuDeviceGraphMemTrim cuGraphAddNode cuGraphAddKernelNode
     cuGraphAddMemcpyNode cuGraphAddMemsetNode cuGraphAddHostNode cuGraphAddChildGraphNode
     cuGraphExecNodeSetParams cuGraphExecKernelNodeSetParams cuGraphExecMemcpyNodeSetParams
     cuGraphExecMemsetNodeSetParams cuGraphExecHostNodeSetParams cuGraphExecChildGraphNodeSetParams
     cuGraphExecExternalSemaphoresSignalNodeSetParams
     cuGraphExecExternalSemaphoresWaitNodeSetParams cuGraphExecBatchMemOpNodeSetParams
     cuGraphAddMemAllocNode cuGraphAddMemFreeNode cuGraphAddEmptyNode
     cuGraphAddEventRecordNode cuGraphAddEventWaitNode cuGraphAddExternalSemaphoresSignalNode
     cuGraphAddExternalSemaphoresWaitNode cuGraphAddBatchMemOpNode
     cuGraphExecEventRecordNodeSetEvent cuGraphExecEventWaitNodeSetEvent
     cuSignalExternalSemaphoresAsync cuWaitExternalSemaphoresAsync cuMemMapArrayAsync
     cuMemAddressReserve cuMemSetAccess cuMemAddressFree cuCtxRecordEvent cuCtxWaitEvent
     cuGreenCtxRecordEvent cuGreenCtxWaitEvent cuStreamWaitValue32 cuStreamWaitValue64
     cuStreamWriteValue32 cuStreamWriteValue64 cuStreamBatchMemOp cuMemGetInfo
     cuCtxEnablePeerAccess cuCtxDisablePeerAccess cuIpcGetMemHandle cuStreamDestroy cuEventDestroy
     cuGreenCtxDestroy cuMulticastAddDevice cuMulticastBindMem cuMulticastBindAddr
     cuMulticastUnbind cuLinkCreate cuLinkAddData cuLinkAddFile cuLinkComplete cuLinkDestroy
     cuFuncLoad cuFuncGetAttribute cuFuncSetAttribute cuKernelSetAttribute
     cuOccupancyAvailableDynamicSMemPerBlock cuOccupancyMaxActiveBlocksPerMultiprocessor
     cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags cuOccupancyMaxActiveClusters
     cuOccupancyMaxPotentialBlockSize cuOccupancyMaxPotentialBlockSizeWithFlags
     cuOccupancyMaxPotentialClusterSize]
        () |function| function.plain();
}
