//! Functions whose arguments do not matter here.

use gpucause_fake_cuda::exports;

use crate::error::finish;

exports! {
    [cudaIpcOpenMemHandle cudaImportExternalMemory cudaIpcCloseMemHandle cudaDestroyExternalMemory
     cudaMemPoolTrimTo cudaMemPoolDestroy cudaDeviceGraphMemTrim cudaGraphAddNode
     cudaGraphAddKernelNode cudaGraphAddMemcpyNode cudaGraphAddMemsetNode cudaGraphAddHostNode
     cudaGraphAddMemcpyNode1D cudaGraphAddMemcpyNodeFromSymbol cudaGraphAddMemcpyNodeToSymbol
     cudaGraphAddMemAllocNode cudaGraphAddMemFreeNode cudaGraphAddEmptyNode
     cudaGraphAddEventRecordNode cudaGraphAddEventWaitNode
     cudaGraphAddExternalSemaphoresSignalNode cudaGraphAddExternalSemaphoresWaitNode
     cudaGraphExecEventRecordNodeSetEvent cudaGraphExecEventWaitNodeSetEvent
     cudaSignalExternalSemaphoresAsync cudaWaitExternalSemaphoresAsync
     cudaGraphAddChildGraphNode cudaGraphExecNodeSetParams cudaGraphExecKernelNodeSetParams
     cudaGraphExecMemcpyNodeSetParams cudaGraphExecMemcpyNodeSetParams1D
     cudaGraphExecMemcpyNodeSetParamsFromSymbol cudaGraphExecMemcpyNodeSetParamsToSymbol
     cudaGraphExecMemsetNodeSetParams cudaGraphExecHostNodeSetParams
     cudaGraphExecChildGraphNodeSetParams cudaGraphExecExternalSemaphoresSignalNodeSetParams
     cudaGraphExecExternalSemaphoresWaitNodeSetParams cudaExecutionCtxSynchronize
     cudaExecutionCtxRecordEvent cudaExecutionCtxWaitEvent cudaGetDeviceProperties cudaMemGetInfo
     cudaDeviceEnablePeerAccess cudaDeviceDisablePeerAccess cudaIpcGetMemHandle
     cudaExecutionCtxDestroy cudaLibraryUnload cudaFuncGetAttributes cudaFuncSetAttribute
     cudaOccupancyAvailableDynamicSMemPerBlock cudaOccupancyMaxActiveBlocksPerMultiprocessor
     cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags cudaOccupancyMaxActiveClusters
     cudaOccupancyMaxPotentialClusterSize]
        () |function| finish(function.plain(), || 0);
}
