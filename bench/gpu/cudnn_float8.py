"""cuDNN's forward pass of 8-bit floats (e4m3) as a peer: a graph of the wheel nvidia-cudnn-frontend (1.19.1 was built against here), which
loads the cuDNN that PyTorch has. PyTorch itself does not offer it.

On Hopper the frontend takes O in e4m3 or e5m2 alone ("HALF/BFLOAT16 output is only supported on Blackwell"), so cuDNN writes half of the
bytes that ours and FlashAttention-3's do. It has one scale for each tensor. P is scaled by 256 before it is rounded, O so that its largest
element is 256."""
import functools, math

import torch

kScaleOfP, kLargestOfO = 256.0, 256.0


@functools.cache
def handle():
    import cudnn

    return cudnn, cudnn.create_handle()


class CudnnFloat8:
    """A graph of contiguous Q, K, V [batch, seqlen, heads, head_dim]. run() puts the pass into the current stream; o() is the result in
    float32. Raises what the frontend raises where it refuses."""

    def __init__(self, q, k, v, causal):
        self.cudnn, self.handle = handle()
        self.graph, self.causal = None, causal
        self.scale_o = torch.ones(1, 1, 1, 1, device="cuda")
        self.out = torch.full_like(q.float(), math.nan).to(q.dtype)
        self.build(q, k, v)
        self.run()
        torch.cuda.synchronize()
        self.scale_o.fill_(kLargestOfO / max(self.largest_o.item(), 1e-6))

    def build(self, q, k, v):
        types = self.cudnn.data_type
        graph = self.cudnn.pygraph(io_data_type=types.FP8_E4M3, intermediate_data_type=types.FLOAT, compute_data_type=types.FLOAT,
                                   handle=self.handle)
        b, n, h, d = q.shape
        shape, strides = [b, h, n, d], [n * h * d, d, h * d, 1]
        given = {name: graph.tensor(dim=shape, stride=strides, data_type=types.FP8_E4M3, name=name) for name in "qkv"}
        names = ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")
        scales = {name: graph.tensor(dim=[1] * 4, stride=[1] * 4, data_type=types.FLOAT, name=name) for name in names}
        mask = dict(diagonal_alignment=self.cudnn.diagonal_alignment.TOP_LEFT, right_bound=0) if self.causal else {}
        o, _, largest_s, largest_o = graph.sdpa_fp8(**given, **scales, generate_stats=False, attn_scale=d**-0.5, **mask)
        o.set_output(True).set_dim(shape).set_stride(strides).set_data_type(types.FP8_E4M3)
        for x in (largest_s, largest_o):
            x.set_output(True).set_dim([1] * 4).set_stride([1] * 4).set_data_type(types.FLOAT)
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([self.cudnn.heur_mode.A, self.cudnn.heur_mode.FALLBACK])
        graph.check_support()
        graph.build_plans()
        values = dict(descale_q=1.0, descale_k=1.0, descale_v=1.0, descale_s=1 / kScaleOfP, scale_s=kScaleOfP)
        constants = {name: torch.full((1, 1, 1, 1), x, device="cuda") for name, x in values.items()} | {"scale_o": self.scale_o}
        largest = torch.zeros(2, 1, 1, 1, 1, device="cuda")
        self.largest_o = largest[1]
        self.tensors = (q, k, v, self.out, largest, constants)  # which the pointers below need
        self.pointers = {tensor.get_uid(): x.data_ptr() for tensor, x in
                         [*zip(given.values(), (q, k, v)), (o, self.out), (largest_s, largest[0]), (largest_o, largest[1]),
                          *((scales[name], constants[name]) for name in names)]}
        self.space = torch.empty(max(1, graph.get_workspace_size()), dtype=torch.uint8, device="cuda")
        self.graph = graph

    def run(self):
        self.cudnn.set_stream(handle=self.handle, stream=torch.cuda.current_stream().cuda_stream)
        self.graph.execute(self.pointers, self.space.data_ptr(), handle=self.handle)

    def o(self):
        return self.out.float() / self.scale_o
