//! Which functions of NVIDIA's libraries are expected in the table of operations, and which are left out, and why.

/// Parts of names of functions that ask, or that give a name or a function to be called later.
const ASKS: &str = "Get Register Unregister Deregister";

/// Parts of names of functions that launch, copy, fill, wait, allocate, communicate, or build and change graphs.
const ACTS: &str = "\
    Launch Cpy cpy Copy Memset Prefetch Discard ompress Sync Async Wait Capture Update Instantiate \
    Upload Signal Flush Batch Callback Record Trim Send Recv Reduce Gather Scatter AlltoAll cast \
    Put Group Free";

/// Parts of names of functions that set up, take down, choose or describe something.
const SETS_UP: &str = "\
    Set Create Destroy Query Import Export Choose Can Reset Elapsed Current Dump Advise \
    AddDependencies Remove Clone Debug Find Retain Release Bind Unbind Is Enumerate Open Close Init \
    Attach Detach Peek Profiler Team Count Rank Stats Split Unload Device ParamBind Version \
    Generate";

/// Parts of names of functions that are not traced, by reason.
const REFUSED: [(&str, &[&str]); 9] = [
    ("frames and buffers of graphics", &["GL", "Graphics", "MipmappedArray"]),
    (
        "changes what a graph is instantiated from; the change of an instantiated one has \"Exec\" in its name",
        &["NodeSetEvent", "NodeSetParams", "NodeCopyAttributes"],
    ),
    (
        "says how a stream or thread captures, or to which stream memory belongs; takes no time",
        &[
            "StreamCopyAttributes",
            "StreamUpdateCaptureDependencies",
            "ThreadExchangeStreamCaptureMode",
            "StreamAttachMemAsync",
        ],
    ),
    (
        "makes the writes of a network card visible; waits for no work of the GPU",
        &["FlushGPUDirectRDMAWrites"],
    ),
    ("called by another process, which checkpoints this one", &["cuCheckpoint"]),
    ("a number of an endpoint; nothing is sent", &["LogicalEndpoint"]),
    ("describes how a kernel reads memory, in the host's memory", &["TensorMap"]),
    ("gone since CUDA 12: the end of a program", &["cudaThreadExit"]),
    ("computes how long or how much something would be", &["ncclGroupSimulateEnd", "CalcSlots"]),
];

/// Why a function is not traced that sounds as if it should be.
pub(crate) fn refusal(name: &str) -> Option<&'static str> {
    let is_change = name.contains("GraphExec");
    let has = |part: &&str| name.contains(*part) && !(is_change && part.starts_with("Node"));
    REFUSED.iter().find(|(_, parts)| parts.iter().any(has)).map(|(reason, _)| *reason)
}

/// Returns true if a function sounds as if it should be traced; so does a name that says nothing known.
pub(crate) fn sounds_traced(name: &str) -> bool {
    let has = |parts: &str| parts.split_whitespace().any(|part| name.contains(part));
    !has(ASKS) && (has(ACTS) || !has(SETS_UP))
}
