// The C interface from Rust, without a crate:
//   rustc -O -L BUILD -l attn examples/c_api.rs
// What bindgen would write of include/attn/attn.h is written by hand here.
use std::ffi::{c_char, c_void, CStr};
use std::mem::size_of;
use std::ptr::null;

#[repr(C)]
#[derive(Clone, Copy)]
struct Device {
    device_type: i32, // 1: the CPU
    device_id: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct DType {
    code: u8, // 2: float
    bits: u8,
    lanes: u16,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: DType,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

// A structure's members after these are zero, which is "not given": the library takes the size that
// the program knows, at least that of its first version.
#[repr(C)]
struct Problem {
    struct_size: u64,
    text: *const c_char,
    not_given: [u64; 19],
}

#[repr(C)]
struct Inputs {
    struct_size: u64,
    q: *const Tensor,
    k: *const Tensor,
    v: *const Tensor,
    not_given: [*const c_void; 13],
}

#[repr(C)]
struct Outputs {
    struct_size: u64,
    o: *const Tensor,
    lse: *const Tensor,
}

extern "C" {
    fn attn_last_error() -> *const c_char;
    fn attn_forward(
        problem: *const Problem,
        inputs: *const Inputs,
        outputs: *const Outputs,
        options: *const c_void,
        context: *const c_void,
    ) -> i32;
}

fn forward(problem: &CStr, q: &Tensor, k: &Tensor, v: &Tensor, o: &Tensor) -> Result<(), String> {
    let problem = Problem {
        struct_size: size_of::<Problem>() as u64,
        text: problem.as_ptr(),
        not_given: [0; 19],
    };
    let inputs = Inputs { struct_size: size_of::<Inputs>() as u64, q, k, v, not_given: [null(); 13] };
    let outputs = Outputs { struct_size: size_of::<Outputs>() as u64, o, lse: null() };
    unsafe {
        match attn_forward(&problem, &inputs, &outputs, null(), null()) {
            0 => Ok(()),
            _ => Err(CStr::from_ptr(attn_last_error()).to_string_lossy().into_owned()),
        }
    }
}

fn main() {
    // Equal keys: every row of O is the mean of the values that it sees.
    let (n, d) = (6usize, 8usize);
    let shape = [1i64, n as i64, 1, d as i64];
    let tensor = |data: &mut Vec<f32>| Tensor {
        data: data.as_mut_ptr() as *mut c_void,
        device: Device { device_type: 1, device_id: 0 },
        ndim: 4,
        dtype: DType { code: 2, bits: 32, lanes: 1 },
        shape: shape.as_ptr(),
        strides: null(),
        byte_offset: 0,
    };
    let mut ones = vec![1f32; n * d];
    let mut values: Vec<f32> = (0..n * d).map(|i| (i / d) as f32).collect();
    let mut result = vec![f32::NAN; n * d];
    let (q, v, o) = (tensor(&mut ones), tensor(&mut values), tensor(&mut result));
    let causal = CStr::from_bytes_with_nul(b"causal\0").unwrap();
    forward(causal, &q, &q, &v, &o).unwrap();
    for (i, x) in result.iter().enumerate() {
        assert!((x - (i / d) as f32 / 2.0).abs() < 1e-6, "O[{}] is {}", i, x);
    }
    let unknown = CStr::from_bytes_with_nul(b"casual\0").unwrap();
    let message = forward(unknown, &q, &q, &v, &o).unwrap_err();
    assert!(message.contains("casual"), "{}", message);
    println!("correct; a refusal says: {}", message);
}
