//! Codes a body as it passes.

use std::io;

use bytes::Bytes;
use compression_codecs::brotli::params::EncoderParams;
use compression_codecs::core::Level;
use compression_codecs::core::util::PartialBuffer;
use compression_codecs::zstd::params::CParameter;
use compression_codecs::{BrotliEncoder, Encode, GzipEncoder, ZstdEncoder};
use tokio::sync::{Semaphore, SemaphorePermit};
use weir_middleware::BodyCoder;

use super::ContentCoding;

/// Size of the buffer that a codec writes to.
const OUTPUT_BYTES: usize = 4096;

/// The window of codecs, as a power of two. gzip has 32 KiB.
const WINDOW_LOG: u8 = 16;

/// The level of gzip, of brotli and of zstd: half of what the best levels save, for a tenth of
/// their time.
const GZIP_LEVEL: i32 = 5;
const BROTLI_LEVEL: i32 = 3;
const ZSTD_LEVEL: i32 = 3;

/// The tables in which zstd looks for matches, as powers of two of their entries. With those of its
/// level it would need twice the memory.
const ZSTD_HASH_LOG: u32 = 15;
const ZSTD_CHAIN_LOG: u32 = 14;

/// Bounds the codecs of the process. A codec takes 350 KB for gzip, 450 KB for zstd and 900 KB for
/// brotli, for as long as its client reads.
pub(super) static PERMITS: Semaphore = Semaphore::const_new(256);

/// A codec; it is dirty while it holds output back.
pub(super) struct Codec {
    encoder: Encoder,
    is_dirty: bool,
    _permit: SemaphorePermit<'static>,
}

enum Encoder {
    Gzip(GzipEncoder),
    Brotli(Box<BrotliEncoder>),
    Zstd(ZstdEncoder),
}

#[derive(Clone, Copy)]
enum Step<'d> {
    Encode(&'d [u8]),
    Flush,
    Finish,
}

impl Codec {
    /// A codec, if there is a permit.
    pub(super) fn new(coding: ContentCoding, permits: &'static Semaphore) -> Option<Self> {
        let permit = permits.try_acquire().ok()?;
        let encoder = match coding {
            ContentCoding::Gzip => {
                Encoder::Gzip(GzipEncoder::new(Level::Precise(GZIP_LEVEL).into()))
            }
            ContentCoding::Brotli => {
                let params = EncoderParams::default()
                    .quality(Level::Precise(BROTLI_LEVEL))
                    .window_size(WINDOW_LOG.into());
                Encoder::Brotli(Box::new(BrotliEncoder::new(params)))
            }
            ContentCoding::Zstd => {
                let tables = [
                    CParameter::window_log(WINDOW_LOG.into()),
                    CParameter::hash_log(ZSTD_HASH_LOG),
                    CParameter::chain_log(ZSTD_CHAIN_LOG),
                ];
                Encoder::Zstd(ZstdEncoder::new_with_params(ZSTD_LEVEL, &tables))
            }
        };
        Some(Self {
            encoder,
            is_dirty: false,
            _permit: permit,
        })
    }

    /// Runs a step and returns its output. A codec that fails writes no more: the end is missing,
    /// and so the client sees that the body is incomplete.
    fn run(&mut self, step: Step<'_>) -> Bytes {
        let mut coded = Vec::new();
        let done = match &mut self.encoder {
            Encoder::Gzip(encoder) => run(encoder, step, &mut coded),
            Encoder::Brotli(encoder) => run(&mut **encoder, step, &mut coded),
            Encoder::Zstd(encoder) => run(encoder, step, &mut coded),
        };
        if let Err(error) = done {
            tracing::warn!(
                target: "weir::middleware::steps::compression::codec",
                %error,
                "a response cannot be compressed to its end"
            );
        }
        coded.into()
    }
}

fn run(encoder: &mut impl Encode, step: Step<'_>, coded: &mut Vec<u8>) -> io::Result<()> {
    let mut input = match step {
        Step::Encode(data) => PartialBuffer::new(data),
        Step::Flush | Step::Finish => PartialBuffer::new(&[][..]),
    };
    loop {
        let mut output = PartialBuffer::new([0; OUTPUT_BYTES]);
        let is_done = match step {
            Step::Encode(_) => {
                encoder.encode(&mut input, &mut output)?;
                input.unwritten().is_empty()
            }
            Step::Flush => encoder.flush(&mut output)?,
            Step::Finish => encoder.finish(&mut output)?,
        };
        coded.extend_from_slice(output.written());
        if is_done {
            return Ok(());
        }
    }
}

impl BodyCoder for Codec {
    fn code(&mut self, data: &[u8]) -> Bytes {
        self.is_dirty = true;
        self.run(Step::Encode(data))
    }

    fn flush(&mut self) -> Bytes {
        if !std::mem::take(&mut self.is_dirty) {
            return Bytes::new();
        }
        self.run(Step::Flush)
    }

    fn finish(&mut self) -> Bytes {
        self.run(Step::Finish)
    }
}
