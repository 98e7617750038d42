//! Result codes as label values.

mod table;

use crate::family::LabelValue;
use gpucause_abi::op::Api;

/// Codes up to here have a label of their own even without a name. Higher ones are not result codes, and must not create
/// unbounded series.
pub const LAST_CODE: u32 = 999;
/// Stands for all higher codes.
pub const UNKNOWN_CODE: u32 = u32::MAX;

/// The name of a result code, `code_N` for an unknown one, or `other`.
#[must_use]
pub fn error_name(api: Api, code: u32) -> LabelValue {
    let table = match api {
        Api::Runtime => table::RUNTIME,
        Api::Driver => table::DRIVER,
        Api::Nccl => table::NCCL,
    };
    match table.binary_search_by_key(&code, |&(code, _)| code) {
        Ok(index) => table[index].1.into(),
        Err(_) if code <= LAST_CODE => format!("code_{code}").into(),
        Err(_) => "other".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(api: Api, code: u32) -> String {
        error_name(api, code).as_str().to_owned()
    }

    #[test]
    fn codes_have_the_names_of_their_api() {
        assert_eq!(name(Api::Runtime, 1), "cudaErrorInvalidValue");
        assert_eq!(name(Api::Runtime, 2), "cudaErrorMemoryAllocation");
        assert_eq!(name(Api::Runtime, 35), "cudaErrorInsufficientDriver");
        assert_eq!(name(Api::Runtime, 100), "cudaErrorNoDevice");
        assert_eq!(name(Api::Runtime, 999), "cudaErrorUnknown");
        assert_eq!(name(Api::Driver, 2), "CUDA_ERROR_OUT_OF_MEMORY");
        assert_eq!(name(Api::Driver, 100), "CUDA_ERROR_NO_DEVICE");
        assert_eq!(name(Api::Driver, 700), "CUDA_ERROR_ILLEGAL_ADDRESS");
        assert_eq!(name(Api::Nccl, 6), "ncclRemoteError");
    }

    #[test]
    fn unknown_codes_are_named_by_number_up_to_the_last_code() {
        assert_eq!(name(Api::Runtime, 998), "code_998");
        assert_eq!(name(Api::Nccl, 8), "code_8");
        assert_eq!(name(Api::Driver, 1000), "other");
        assert_eq!(name(Api::Runtime, u32::MAX), "other");
    }

    #[test]
    fn tables_are_sorted_and_names_unique() {
        for table in [table::RUNTIME, table::DRIVER, table::NCCL] {
            assert!(table.is_sorted_by(|a, b| a.0 < b.0));
            for (index, (code, name)) in table.iter().enumerate() {
                assert!(*code <= LAST_CODE, "{name}");
                assert!(table[..index].iter().all(|(_, other)| other != name), "{name} twice");
            }
        }
    }
}
