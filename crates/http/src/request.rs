//! Requests as layers pass them on.

use std::cell::RefCell;

use http::request::Parts;
use http::{Extensions, HeaderMap, Method, Request, Uri, Version};

/// A request on its way through layers: one of `http`, or a [`BoxedRequest`]. The methods are those
/// of [`Request`].
#[allow(missing_docs, reason = "they are those of `http`")]
pub trait HttpRequest: Sized {
    type Body;
    /// The same request with another body.
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
    fn into_boxed(self) -> BoxedRequest<Self::Body>;
}

/// A request whose head is in a box. A server passes on requests so: each layer moves the request
/// to the next, and a head has more than 200 bytes.
#[derive(Debug)]
pub struct BoxedRequest<B> {
    /// All but the body.
    pub head: Box<Parts>,
    /// The body.
    pub body: B,
}

/// As many spare boxes has a thread: it seldom has so many requests between two responses.
const MAX_SPARE: usize = 64;

thread_local! {
    static SPARE: RefCell<Vec<Box<Parts>>> = const { RefCell::new(Vec::new()) };
}

impl<B> BoxedRequest<B> {
    /// A request as [`Request::new`] makes one, in a box that was given back on this thread.
    pub fn new(body: B) -> Self {
        let spare = SPARE.with_borrow_mut(Vec::pop);
        let head = spare.unwrap_or_else(|| Box::new(Request::new(()).into_parts().0));
        Self { head, body }
    }
}

/// Gives back the box of a request that is over, for the next request on this thread.
pub fn give_back(mut head: Box<Parts>) {
    // What it refers to may be as large as all that a client has sent.
    head.method = Method::GET;
    head.uri = Uri::default();
    head.version = Version::HTTP_11;
    head.headers = HeaderMap::new();
    head.extensions = Extensions::new();
    SPARE.with_borrow_mut(|spare| {
        if spare.len() < MAX_SPARE {
            spare.push(head);
        }
    });
}

impl<B> From<Request<B>> for BoxedRequest<B> {
    fn from(request: Request<B>) -> Self {
        request.into_boxed()
    }
}

impl<B> From<BoxedRequest<B>> for Request<B> {
    fn from(request: BoxedRequest<B>) -> Self {
        Self::from_parts(*request.head, request.body)
    }
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
        BoxedRequest {
            head: Box::new(head),
            body,
        }
    }
}
