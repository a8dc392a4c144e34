//! Compiles the interfaces in `proto/`, with `protox` in place of a `protoc` that everybody who builds would have to
//! install.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const FILES: [&str; 4] = [
        "cri-runtime-v1.proto",
        "kubelet-podresources-v1.proto",
        "nri-v1alpha1.proto",
        "ttrpc.proto",
    ];
    for file in FILES {
        println!("cargo::rerun-if-changed=proto/{file}");
        let descriptors = protox::compile([file], ["proto"])?;
        tonic_prost_build::configure()
            .build_transport(false)
            .build_server(false)
            .compile_fds(descriptors)?;
    }
    Ok(())
}
