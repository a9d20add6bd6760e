//! Requests as layers pass them on: with the head of `http`, in a box or not.

use std::cell::RefCell;

use http::request::Parts;
use http::{Extensions, HeaderMap, HeaderValue, Method, Request, Uri, Version};

/// A request as layers take it: a [`Request`], as users of the library have it, or a
/// [`BoxedRequest`], as the server makes it. All methods but `into_boxed` are those of [`Request`].
#[allow(missing_docs, reason = "they are those of `http`")]
pub trait HttpRequest: Sized + sealed::Sealed {
    type Body;
    /// The same form of request with a body of type `B`.
    type With<B>: HttpRequest<Body = B>;

    fn method(&self) -> &Method;
    fn uri(&self) -> &Uri;
    fn uri_mut(&mut self) -> &mut Uri;
    fn version(&self) -> Version;
    fn headers(&self) -> &HeaderMap;
    fn headers_mut(&mut self) -> &mut HeaderMap;
    fn extensions(&self) -> &Extensions;
    fn extensions_mut(&mut self) -> &mut Extensions;
    fn body(&self) -> &Self::Body;
    fn map<B>(self, map: impl FnOnce(Self::Body) -> B) -> Self::With<B>;
    /// The same request with its head in a box: for a [`Request`], in a spare one of this thread.
    fn into_boxed(self) -> BoxedRequest<Self::Body>;
}

/// A request whose head is in a box. A head has more than 200 bytes, and each layer moves the
/// request to the next; this moves a pointer.
#[derive(Debug)]
pub struct BoxedRequest<B> {
    /// All but the body.
    pub head: Box<Parts>,
    /// The body.
    pub body: B,
}

/// Marks a request by a stream of HTTP/2 that is to become a WebSocket (RFC 8441, section 4); the
/// server leaves it in the extensions.
#[derive(Clone, Copy, Debug)]
pub struct WebSocketStream;

/// The `Via` that Weir adds to a message that came by `version` (RFC 9110, section 7.6.3).
pub fn via(version: Version) -> HeaderValue {
    HeaderValue::from_static(match version {
        Version::HTTP_2 => "2 weir",
        Version::HTTP_3 => "3 weir",
        Version::HTTP_10 => "1.0 weir",
        _ => "1.1 weir",
    })
}

/// How many spare boxes a thread keeps at most, which are 14 KiB then.
const MAX_SPARE: usize = 64;

thread_local! {
    #[expect(clippy::vec_box, reason = "what is kept are the boxes")]
    static SPARE: RefCell<Vec<Box<Parts>>> = const { RefCell::new(Vec::new()) };
}

impl<B> BoxedRequest<B> {
    /// A request as [`Request::new`] makes one, in a spare box of this thread if there is one.
    pub fn new(body: B) -> Self {
        let spare = SPARE.with_borrow_mut(Vec::pop);
        let head = spare.unwrap_or_else(|| Box::new(Request::new(()).into_parts().0));
        Self { head, body }
    }
}

/// Keeps the box of a request that is over for a later [`BoxedRequest::new`] on this thread. A head
/// that is dropped instead is freed.
pub fn give_back(mut head: Box<Parts>) {
    // A spare head must not keep what the client has sent: target and values share its memory.
    head.method = Method::GET;
    head.uri = Uri::default();
    head.version = Version::HTTP_11;
    // Most have been taken for the response: to drop an empty map takes as long as all of this.
    if head.headers.capacity() > 0 {
        head.headers = HeaderMap::new();
    }
    head.extensions = Extensions::new();
    SPARE.with_borrow_mut(|spare| {
        if spare.len() < MAX_SPARE {
            spare.push(head);
        }
    });
}

impl<B> From<BoxedRequest<B>> for Request<B> {
    fn from(request: BoxedRequest<B>) -> Self {
        Self::from_parts(*request.head, request.body)
    }
}

mod sealed {
    /// No other type is a request of layers.
    pub trait Sealed {}

    impl<B> Sealed for super::Request<B> {}
    impl<B> Sealed for super::BoxedRequest<B> {}
}

impl<B> HttpRequest for BoxedRequest<B> {
    type Body = B;
    type With<C> = BoxedRequest<C>;

    fn method(&self) -> &Method {
        &self.head.method
    }

    fn uri(&self) -> &Uri {
        &self.head.uri
    }

    fn uri_mut(&mut self) -> &mut Uri {
        &mut self.head.uri
    }

    fn version(&self) -> Version {
        self.head.version
    }

    fn headers(&self) -> &HeaderMap {
        &self.head.headers
    }

    fn headers_mut(&mut self) -> &mut HeaderMap {
        &mut self.head.headers
    }

    fn extensions(&self) -> &Extensions {
        &self.head.extensions
    }

    fn extensions_mut(&mut self) -> &mut Extensions {
        &mut self.head.extensions
    }

    fn body(&self) -> &B {
        &self.body
    }

    fn map<C>(self, map: impl FnOnce(B) -> C) -> BoxedRequest<C> {
        BoxedRequest {
            head: self.head,
            body: map(self.body),
        }
    }

    fn into_boxed(self) -> Self {
        self
    }
}

impl<B> HttpRequest for Request<B> {
    type Body = B;
    type With<C> = Request<C>;

    fn method(&self) -> &Method {
        self.method()
    }

    fn uri(&self) -> &Uri {
        self.uri()
    }

    fn uri_mut(&mut self) -> &mut Uri {
        self.uri_mut()
    }

    fn version(&self) -> Version {
        self.version()
    }

    fn headers(&self) -> &HeaderMap {
        self.headers()
    }

    fn headers_mut(&mut self) -> &mut HeaderMap {
        self.headers_mut()
    }

    fn extensions(&self) -> &Extensions {
        self.extensions()
    }

    fn extensions_mut(&mut self) -> &mut Extensions {
        self.extensions_mut()
    }

    fn body(&self) -> &B {
        self.body()
    }

    fn map<C>(self, map: impl FnOnce(B) -> C) -> Request<C> {
        self.map(map)
    }

    fn into_boxed(self) -> BoxedRequest<B> {
        let (head, body) = self.into_parts();
        let mut request = BoxedRequest::new(body);
        *request.head = head;
        request
    }
}

#[cfg(test)]
mod tests {
    use http::header::HOST;
    use http::{HeaderValue, StatusCode};

    use super::*;

    #[test]
    fn nothing_of_one_request_is_found_by_the_next_in_its_memory() {
        let mut request = BoxedRequest::new(());
        let first = &raw const *request.head;
        request.head.method = Method::DELETE;
        request.head.uri = Uri::from_static("/secret");
        request.head.version = Version::HTTP_2;
        let host = HeaderValue::from_static("a.example");
        request.headers_mut().insert(HOST, host);
        request.extensions_mut().insert(StatusCode::OK);
        give_back(request.head);
        let next = BoxedRequest::new(());
        assert_eq!(&raw const *next.head, first);
        let new = Request::new(());
        assert_eq!(next.method(), new.method());
        assert_eq!(next.uri(), new.uri());
        assert_eq!(next.version(), new.version());
        assert!(next.headers().is_empty() && next.extensions().is_empty());
    }

    #[test]
    fn no_more_boxes_are_kept_than_the_bound() {
        let many: Vec<_> = (0..=MAX_SPARE).map(|_| BoxedRequest::new(())).collect();
        many.into_iter().for_each(|request| give_back(request.head));
        assert_eq!(SPARE.with_borrow(Vec::len), MAX_SPARE);
    }
}
